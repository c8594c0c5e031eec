// The look of the page of proofs: light and dark, from 320 pixels on.
#pragma once
#include <string_view>

namespace mettle {

inline constexpr std::string_view kReportStyle = R"css(
:root {
  --page: #f6f6f3; --card: #fff; --text: #1c1f23; --soft: #626972; --line: #e2e3de; --accent: #0a6b5c;
  --ok: #0a6b5c; --ok-tint: #dcf1ea; --bad: #b3261e; --bad-tint: #fce6e3; --warn: #855600; --warn-tint: #fdf0d5;
  --s0: #0a6b5c; --s1: #2f6fb0; --s2: #7a55b4; --s3: #8a6a1f; --on-shade: #fff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #111418; --card: #191d22; --text: #e8eaed; --soft: #9ba3ad; --line: #2c323a; --accent: #55cfb5;
    --ok: #55cfb5; --ok-tint: #133b33; --bad: #ff9087; --bad-tint: #411c19; --warn: #f0c160; --warn-tint: #3b2d0e;
    --s0: #1d7a69; --s1: #2c669f; --s2: #6c4ba4; --s3: #7d6120; --on-shade: #fff;
  }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1, h2, h3, p, dl, ul, figure, table { margin: 0; padding: 0; }
h1 { font-size: clamp(1.9rem, 6vw, 2.9rem); line-height: 1.1; letter-spacing: -.02em; font-weight: 650; }
h2 { font-size: 1.3rem; letter-spacing: -.01em; margin-top: 2.75rem; }
h2 small, h3 small { font-weight: 400; color: var(--soft); font-size: .95rem; letter-spacing: 0; margin-left: .4rem; }
h3 { font-size: 1rem; font-weight: 600; }
small { font-size: .8rem; }
.note, .lead, .problem, .legend p { color: var(--soft); }
.note { margin: .15rem 0 1rem; }
.lead { margin-top: .6rem; max-width: 46rem; font-size: 1.05rem; }
.brand { color: var(--soft); margin-bottom: .8rem; }
.brand b { color: var(--accent); font-weight: 600; }
header { border-left: .35rem solid var(--ok); padding: .25rem 0 .25rem 1.25rem; }
header.unwell { border-color: var(--bad); }
header.unwell h1 { color: var(--bad); }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin-top: 1.25rem; font-size: .88rem; }
.facts div { min-width: 0; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.tiles { list-style: none; display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem; margin-top: 1.75rem; }
.tiles li { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; color: var(--soft); font-size: .88rem; }
.tiles b { display: block; font-size: 1.45rem; line-height: 1.25; font-weight: 620; color: var(--text); letter-spacing: -.01em; white-space: nowrap; }
.tiles .ok b { color: var(--ok); }
.tiles .failed b { color: var(--bad); }
.tiles .refused b { color: var(--warn); }
.problem { font: .8rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; margin: 1.4rem 0 .4rem; }
.bands { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .4rem 1rem .8rem; }
.band { display: grid; grid-template-columns: 15rem repeat(var(--buckets), minmax(0, 1fr)); gap: 3px; align-items: stretch; padding-top: .45rem; }
.band.heads { color: var(--soft); font-size: .8rem; padding-top: .3rem; }
.band a { color: inherit; text-decoration: none; font: .78rem/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; padding-right: 1rem; align-self: center; }
.band a:hover { color: var(--accent); text-decoration: underline; }
.band:not(.heads) span { grid-column: span var(--n); background: var(--s0); color: var(--on-shade); border-radius: .35rem; padding: .3rem .55rem; font-size: .86rem; line-height: 1.3; overflow-wrap: anywhere; }
.band b { font-weight: 600; }
.band i { display: none; font-style: normal; }
.band span.s1 { background: var(--s1); }
.band span.s2 { background: var(--s2); }
.band span.s3 { background: var(--s3); }
.band span.none { background: var(--bad-tint); color: var(--bad); }
.card { background: var(--card); border: 1px solid var(--line); border-left: .3rem solid var(--warn); border-radius: .5rem; padding: .8rem 1rem; margin-top: .75rem; overflow-wrap: anywhere; }
.card.failed { border-left-color: var(--bad); }
.card p { margin-top: .3rem; }
.card .remedy::before { content: "→ "; color: var(--accent); }
.card h3 { font-weight: 500; }
.card .code { margin-right: .3rem; }
.card ul { list-style: none; margin-top: .55rem; font-size: .9rem; }
.card li { padding: .3rem 0; border-top: 1px solid var(--line); }
.card li b { font-weight: 600; }
.card .values { color: var(--soft); margin-left: .75rem; }
.card .values b { font-weight: 500; color: var(--text); }
.card small { display: block; color: var(--soft); font: .74rem/1.4 ui-monospace, Menlo, Consolas, monospace; }
.code { font: 600 .74rem/1.6 ui-monospace, Menlo, Consolas, monospace; padding: .1rem .45rem; border-radius: .3rem; background: var(--warn-tint); color: var(--warn); white-space: nowrap; }
.ok .code { background: var(--ok-tint); color: var(--ok); }
.failed .code { background: var(--bad-tint); color: var(--bad); }
figure { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .6rem .8rem .3rem; }
svg { display: block; overflow: visible; }
svg .grid, svg .lane { stroke: var(--line); stroke-width: 1; }
svg .lane { stroke-width: 2; }
svg .limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .wrong { fill: var(--bad-tint); opacity: .55; }
svg text { font-size: 13px; fill: var(--text); }
svg .axis { font-size: 11px; fill: var(--soft); }
svg .dot { fill: var(--ok); fill-opacity: .75; }
svg .dot.failed { fill: var(--bad); }
svg .ring { fill: none; stroke: var(--ok); stroke-width: 1.4; stroke-opacity: .8; }
svg .ring.failed { stroke: var(--bad); }
table { width: 100%; border-collapse: collapse; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; font-weight: 400; padding: .42rem .6rem; border-top: 1px solid var(--line); vertical-align: middle; }
thead th { color: var(--soft); font-size: .78rem; border-top: 0; }
tbody th { font-weight: 550; overflow-wrap: anywhere; }
tbody th small, td small { color: var(--soft); font-weight: 400; }
.us { text-align: right; white-space: nowrap; color: var(--soft); }
thead th:nth-child(n+3) { text-align: right; }
.us.chosen { background: var(--ok-tint); color: var(--ok); font-weight: 620; }
.us.chosen small { color: inherit; }
tfoot th, tfoot td { color: var(--soft); font-size: .8rem; padding-top: .25rem; padding-bottom: .25rem; }
tfoot tr:not(:first-child) > * { border-top: 0; }
tr.refused th, tr.refused td { opacity: .8; }
.share { display: block; font-size: .7rem; background: linear-gradient(var(--accent), var(--accent)) no-repeat left bottom / calc(var(--share) * 100%) 2px; padding-bottom: 3px; }
.legend { border-top: 1px solid var(--line); margin-top: 3rem; font-size: .92rem; }
.legend h2 { margin-top: 1.25rem; }
.legend p { margin-top: .5rem; max-width: 48rem; }
.legend .key { background: var(--ok-tint); color: var(--ok); padding: 0 .35rem; border-radius: .25rem; }
@media (max-width: 44rem) {
  main { padding: 1.25rem .9rem 3rem; }
  header { padding-left: .9rem; }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .5rem; }
  .bands { padding: .2rem .8rem .9rem; }
  .band.heads { display: none; }
  .band { grid-template-columns: 1fr; padding-top: .8rem; }
  .band a { padding: 0 0 .15rem; }
  .band:not(.heads) span { grid-column: auto; }
  .band i { display: inline-block; min-width: 6.2rem; opacity: .85; }
  table, tbody, tfoot { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tbody tr, tfoot tr { display: grid; grid-template-columns: repeat(var(--buckets), minmax(0, 1fr)); padding: .55rem .6rem; border-top: 1px solid var(--line); }
  tbody tr:first-child { border-top: 0; }
  tfoot tr { padding: .1rem .6rem .4rem; border-top: 0; }
  tfoot tr:first-child { border-top: 1px solid var(--line); padding-top: .5rem; }
  tbody th, tbody td, tfoot th, tfoot td { border: 0; padding: 0; }
  tfoot th { grid-column: 1 / -1; }
  tfoot .us { white-space: normal; margin-top: 0; }
  tfoot .us::before { display: none; }
  tbody th { grid-column: 1 / 4; }
  .verdict { grid-column: 4 / -1; text-align: right; }
  .us { text-align: center; padding: .25rem 0; margin-top: .35rem; font-size: .78rem; border-radius: .3rem; }
  .us::before { content: attr(data-rows); display: block; font-size: .68rem; color: var(--soft); font-weight: 400; }
}
@media (max-width: 24.5rem) {
  .tiles b { font-size: 1.15rem; }
  .us { font-size: .69rem; letter-spacing: -.01em; }
  tfoot .us { font-size: .66rem; }
}
@media print { body { background: #fff; } section { break-inside: avoid; } }
)css";

}  // namespace mettle

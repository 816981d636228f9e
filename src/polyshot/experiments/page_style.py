"""The look of a result page: inline, so that the page is one file that needs nothing else."""

STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #57606a; --line: #d5dae0; --tint: #f4f6f8;
  --blue: #2f6db5; --up: #0b6b34; --down: #a1260d; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 68rem; background: #fff;
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: clamp(1.5rem, 5vw, 2.1rem); line-height: 1.2; margin: 0 0 .75rem;
  text-wrap: balance; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.5rem 0 .5rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .1rem; }
p, li, dd { max-width: 44rem; }
p { margin: .5rem 0; }
.note { color: var(--soft); font-size: .9rem; }
code, pre { font: .88em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px;
  padding: .7rem .9rem; overflow-x: auto; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem 2rem; margin: 1.2rem 0 0; padding: 0; }
.facts dt { font-size: .8rem; color: var(--soft); }
.facts dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; }
.legend { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .8rem 0;
  font-size: .92rem; }
.legend dt { font-weight: 600; }
.legend dd { margin: 0; }
.charts { display: grid; gap: 1.5rem 3rem; margin-top: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
.charts ul { list-style: none; margin: .5rem 0 0; padding: 0; }
.bar { display: grid; grid-template-columns: minmax(5.5rem, 8.5rem) 1fr 6rem; gap: .7rem;
  align-items: center; padding: .2rem 0; font-size: .92rem; max-width: none; line-height: 1.25; }
.track { position: relative; display: block; height: 1.15rem; background: var(--tint); }
.track i { position: absolute; display: block; }
.fill { left: 0; top: 0; bottom: 0; background: var(--blue); border-radius: 0 3px 3px 0; }
.reference .fill { background: #8a94a0; }
.whisker { top: 50%; height: 2px; margin-top: -1px; background: var(--ink); min-width: 2px; }
.whisker::before, .whisker::after { content: ""; position: absolute; width: 2px; height: 8px;
  top: -3px; background: var(--ink); }
.whisker::before { left: 0; }
.whisker::after { right: 0; }
.chance { top: -.2rem; bottom: -.2rem; width: 0; border-left: 2px dashed var(--ink); }
.value { white-space: nowrap; text-align: right; font-variant-numeric: tabular-nums; }
.pm { color: var(--soft); font-size: .88em; }
.box { position: relative; overflow-x: auto; margin: .8rem 0; border: 1px solid var(--line);
  border-radius: 6px; } /* relative: hidden text inside must not widen the page */
.box:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; line-height: 1.35; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: .4rem .7rem; text-align: right; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); }
tbody:last-child tr:last-child > * { border-bottom: 0; }
thead th { vertical-align: bottom; background: var(--tint); }
th:first-child { position: sticky; left: 0; z-index: 1; text-align: left; background: #fff;
  white-space: normal; min-width: 5.5rem; }
tbody th { font-weight: 500; }
thead th:first-child, .average > *, .average th:first-child { background: var(--tint); }
.group th:first-child { background: #fff; padding-top: .9rem; font-weight: 700; }
.group td { padding: 0; }
.average > * { font-weight: 600; }
.average .pm, .average .diff { font-weight: 400; }
.diff { display: block; font-size: .84em; color: var(--soft); }
.average b.diff, b.diff { font-weight: 700; }
b.up { color: var(--up); }
b.down { color: var(--down); }
.heat .box { width: fit-content; max-width: 100%; }
.heat table { width: auto; }
.heat td, .heat thead th:not(:first-child) { text-align: center; padding: .45rem .5rem; }
.heat tbody td { border-left: 1px solid #fff; border-bottom-color: #fff; min-width: 3rem; }
.heat .own { box-shadow: inset 0 0 0 2px var(--ink); }
.sheets { display: grid; gap: 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; }
figure img { display: block; width: 100%; height: auto; border: 1px solid var(--line);
  border-radius: 6px; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (max-width: 40rem) {
  body { padding: 1rem 1rem 2rem; }
  .bar { grid-template-columns: 5.5rem 1fr 5.6rem; gap: .5rem; font-size: .86rem; }
  .legend { grid-template-columns: 1fr; }
  .legend dd { margin-bottom: .4rem; }
  th, td { padding: .4rem .5rem; }
}
@media print {
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .box { overflow: visible; border: 0; }
  table { font-size: 7.5pt; }
  th, td { padding: .2rem .3rem; }
  th:first-child { position: static; }
  h2, h3 { break-after: avoid; }
  tr, figure, .charts section, .heat, pre { break-inside: avoid; }
  .sheets { grid-template-columns: 1fr 1fr; }
  figure img { max-height: 24cm; object-fit: contain; object-position: left top; }
}
"""

REPORT_STYLE = (
    STYLE
    + """
body { max-width: 90rem; }
a { color: var(--blue); }
h2 { scroll-margin-top: .5rem; }
h3 { margin-top: 2rem; text-wrap: balance; }
h4 { margin: 1.2rem 0 .2rem; }
.contents { columns: 20rem; column-gap: 2rem; padding-left: 1.2rem; margin: 1rem 0; }
.contents li { padding: .15rem 0; break-inside: avoid; }
.report thead th { white-space: normal; }
.report .average td { font-weight: 400; }
.best { background: #fff0b3; border-radius: 3px; padding: 0 .15rem; font-weight: 700; }
.best .pm { font-weight: 400; }
.words table { width: auto; min-width: 100%; }
.words td { text-align: left; white-space: normal; min-width: 7rem; max-width: 32rem;
  overflow-wrap: anywhere; }
.words thead th { text-align: left; }
.numbers .box { width: fit-content; max-width: 100%; }
.numbers table { width: auto; }
.numbers th:first-child { min-width: 8.5rem; }
figure { margin: .8rem 0 1.6rem; }
figcaption.note { font-weight: 400; max-width: 44rem; }
.chart { padding: .5rem; width: fit-content; max-width: 100%; }
svg { display: block; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
  sans-serif; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .rule { stroke: var(--line); stroke-width: 1; fill: none; }
svg .guess { stroke: var(--ink); stroke-dasharray: 5 4; }
svg .line { stroke: var(--ink); stroke-width: 1; fill: none; }
svg polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .validation { stroke: var(--blue); }
svg .loss { stroke: #8a5a00; }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0;
  margin: .4rem 0 0; font-size: .88rem; }
.keys i { display: inline-block; width: .8em; height: .8em; border: 2px solid; margin-right: .4em;
  vertical-align: -.05em; }
.curves { display: grid; gap: .5rem 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); }
.curves figure { margin: .4rem 0; }
.curves figcaption { font-size: .9rem; }
summary { cursor: pointer; font-weight: 600; padding: .3rem 0; overflow-wrap: anywhere; }
.pair { display: grid; gap: 0 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 40rem), 1fr)); }
@media (max-width: 40rem) {
  .numbers th:first-child { min-width: 6rem; }
}
@media print {
  .chart { padding: 0; }
  svg { max-width: 100%; height: auto; }
  .curves { grid-template-columns: repeat(3, 1fr); }
  .curves figure, .bars { break-inside: avoid; }
  .report table { font-size: 6.5pt; }
}
"""
)

// The look of a page: light, one column of text, drawings in a grid, and the same on paper.
#pragma once

#include <string_view>

namespace dsv4rt::report {

inline constexpr std::string_view kPageStyle = R"css(
:root { --ink: #1f2933; --quiet: #5c6b7a; --rule: #dde3e9; --grid: #edf0f3; --c1: #2f6690; --c2: #d17a22; --c3: #4f8a5b;
  --c4: #b23a48; --c5: #8a6fa8; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: #fff; color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 28px 48px; }
header p { margin: 2px 0; color: var(--quiet); overflow-wrap: anywhere; }
h1 { font-size: 25px; line-height: 1.25; font-weight: 600; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 18px; font-weight: 600; margin: 38px 0 10px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 13px; font-weight: 500; margin: 0; color: var(--quiet); }
p { margin: 0 0 10px; max-width: 76ch; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 12px; margin: 20px 0 0; }
.tile { border: 1px solid var(--rule); border-radius: 8px; padding: 11px 14px 10px; min-width: 0; }
.tile p { margin: 0; }
.value { font-size: 23px; line-height: 1.35; font-weight: 600; font-variant-numeric: tabular-nums; }
.below { color: var(--quiet); font-size: 13px; }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 26px 36px; margin: 14px 0; }
figure { margin: 0; min-width: 0; max-width: 660px; break-inside: avoid; }
figcaption strong { display: block; font-weight: 600; }
figcaption span { color: var(--quiet); font-size: 13px; }
figcaption > span { display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 4px 0 0; padding: 0;
  font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; }
.legend i { width: 18px; height: 0; border-top: 2.5px solid currentColor; }
.legend i.swatch { height: 11px; border: 0; background: currentColor; opacity: .55; border-radius: 2px; }
.legend i.dashed { border-top-style: dashed; }
svg { display: block; width: 100%; height: auto; margin-top: 4px; }
svg text { font-size: 11px; fill: var(--quiet); font-family: inherit; font-variant-numeric: tabular-nums; }
svg .name { fill: var(--c4); font-weight: 500; }
.grid { stroke: var(--grid); }
.axis { stroke: #9aa7b4; }
.mark { stroke: var(--c4); stroke-dasharray: 4 3; stroke-width: 1.2; }
.c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); } .c4 { color: var(--c4); }
.c5 { color: var(--c5); }
svg .line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
svg .thin { stroke-width: 1.1; }
svg .dashed { stroke-dasharray: 5 3; }
svg .area { fill: currentColor; fill-opacity: .5; stroke: none; }
svg .pale { fill-opacity: .22; }
.legend i.pale { opacity: .28; }
svg .dot { fill: #fff; stroke: currentColor; stroke-width: 1.8; }
table { border-collapse: collapse; margin: 12px 0 16px; font-size: 13px; font-variant-numeric: tabular-nums;
  max-width: 100%; }
th { font-weight: 500; color: var(--quiet); text-align: left; vertical-align: bottom; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
td:last-child, th:last-child { padding-right: 0; }
th.n, td.n { text-align: right; overflow-wrap: normal; }
dl { display: grid; grid-template-columns: minmax(120px, max-content) 1fr; gap: 3px 20px; margin: 10px 0; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 900px) { main { padding: 20px 20px 36px; } .value { font-size: 20px; } }
@media (max-width: 620px) { .tiles { grid-template-columns: 1fr 1fr; } .gallery { grid-template-columns: 1fr; } }
@page { margin: 14mm; }
@media print {
  body { font-size: 10.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  .gallery { grid-template-columns: 1fr 1fr; gap: 16px 22px; }
  h2 { break-after: avoid; }
  tr, .tile { break-inside: avoid; }
}
)css";

}  // namespace dsv4rt::report

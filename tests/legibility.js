// What tests/legibility.py asks a page of Chromium about the words of the panel.
({
// words → contrast to their background; disabled and dimmed words are left out
contrasts: parts => {
  const rgba = colour => (colour.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const over = ([r, g, b, a = 1], below) => [r, g, b].map((x, i) => a * x + (1 - a) * below[i]);
  const white = [255, 255, 255];
  const behind = e => over(
    rgba(getComputedStyle(e).backgroundColor), e.parentElement ? behind(e.parentElement) : white);
  const linear = x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const light = c => c.map(x => linear(x / 255))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const found = {};
  for (const e of document.querySelectorAll(parts)) {
    const written = [...e.childNodes].filter(n => n.nodeType == 3);
    const words = written.map(n => n.textContent.trim()).join('') || e.value;
    if (!words || !e.getClientRects().length) continue;
    if (e.closest('[disabled], [style*="opacity:.45"]')) continue;
    const below = behind(e), style = getComputedStyle(e);
    let faded = 1;
    for (let up = e; up; up = up.parentElement) faded *= getComputedStyle(up).opacity;
    const [r, g, b, a = 1] = rgba(e.ownerSVGElement ? style.fill : style.color);
    const both = [light(over([r, g, b, a * faded], below)), light(below)];
    const [one, other] = both.sort((a, b) => b - a);
    found[String(words).slice(0, 40)] = (one + 0.05) / (other + 0.05);
  }
  return found;
},
// [words, size of their letters in pixels], of each element
sizes: () => [...document.querySelectorAll('.gaussmark-panel *')]
  .filter(e => e.getClientRects().length)
  .filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()))
  .map(e => {
    const svg = e.ownerSVGElement;
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    return [e.textContent.slice(0, 40), scale * parseFloat(getComputedStyle(e).fontSize)] }),
// elements whose content is wider than they are
clipped: () => [...document.querySelectorAll('.gaussmark-panel, .gaussmark-panel *')]
  .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
  .filter(e => getComputedStyle(e).overflowX != 'visible')
  .map(e => e.className + ' ' + e.textContent.slice(0, 40)),
})

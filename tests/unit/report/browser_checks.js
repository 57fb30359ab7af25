// Looks at pages as a browser lays them out. Every iframe of the harness is one page at one width; what is found is
// written as JSON into #result. The pages themselves run no script.
'use strict';

function overlap(a, b) {
  const slack = 0.75;  // px: boxes of text are taller than its letters
  return a.left + slack < b.right && b.left + slack < a.right && a.top + slack < b.bottom && b.top + slack < a.bottom;
}

// Boxes of the text of an element, one a line.
function textBoxes(element) {
  const range = element.ownerDocument.createRange();
  range.selectNodeContents(element);
  return [...range.getClientRects()].filter((box) => box.width > 0.5 && box.height > 0.5);
}

function overlaps(elements) {
  const found = [];
  const boxes = elements.map((element) => textBoxes(element));
  for (let i = 0; i < elements.length; ++i) {
    for (let j = i + 1; j < elements.length; ++j) {
      if (boxes[i].some((a) => boxes[j].some((b) => overlap(a, b)))) {
        found.push(`"${elements[i].textContent}" and "${elements[j].textContent}"`);
      }
    }
  }
  return found;
}

function lookAt(frame) {
  const page = frame.contentDocument;
  const found = {overlapping: [], outside: [], small: [], handlers: [], clipped: []};
  for (const svg of page.querySelectorAll('svg')) {
    const texts = [...svg.querySelectorAll('text')];
    const area = svg.getBoundingClientRect();
    found.overlapping.push(...overlaps(texts));
    for (const text of texts) {
      const box = text.getBoundingClientRect();
      const inside = box.left >= area.left - 0.5 && box.right <= area.right + 0.5 && box.top >= area.top - 0.5 &&
          box.bottom <= area.bottom + 0.5;
      if (!inside) found.outside.push(text.textContent);
      if (box.height < 9) found.small.push(text.textContent);
    }
  }
  for (const table of page.querySelectorAll('table')) {
    found.overlapping.push(...overlaps([...table.querySelectorAll('th, td')]));
  }
  found.overlapping.push(...overlaps([...page.querySelectorAll('h1, h2, h3, p, li, dt, dd, figcaption strong')]));
  for (const box of page.querySelectorAll('.tile, figure, figcaption, dd, p, h1, h2')) {
    if (box.scrollWidth > box.clientWidth + 1) found.clipped.push(box.textContent.slice(0, 80));
  }
  for (const element of page.querySelectorAll('*')) {
    for (const attribute of element.attributes) {
      if (/^on/i.test(attribute.name)) found.handlers.push(attribute.name);
    }
  }
  const root = page.documentElement;
  return {
    name: frame.title,
    width: frame.clientWidth,
    found,
    beyondTheEdge: root.scrollWidth - root.clientWidth,
    sections: [...page.querySelectorAll('section')].map((section) => section.id),
    svgs: page.querySelectorAll('svg').length,
    texts: page.querySelectorAll('svg text').length,
    loading: [...page.querySelectorAll('script, link, img, iframe, object, embed, audio, video, source, use, [src], [href]')]
                 .map((element) => element.tagName),
    requests: frame.contentWindow.performance.getEntriesByType('resource').map((entry) => entry.name),
    title: page.title,
    headings: [...page.querySelectorAll('figcaption strong')].map((heading) => heading.textContent),
    numbers: [...page.querySelectorAll('[data-json]')].map(
        (number) => [number.dataset.json, Number(number.dataset.scale || 1), number.textContent]),
    firstLine: (page.querySelector('svg polyline') || {getAttribute: () => ''}).getAttribute('points'),
    text: page.body.innerText,
  };
}

window.addEventListener('load', () => {
  const looks = [...document.querySelectorAll('iframe')].map(lookAt);
  document.querySelector('#result').textContent = JSON.stringify(looks);
});

'use strict';
// Draws the report from the JSON beside it. No libraries; everything is vector except the mask, whose slices are filled
// as polygons on a canvas at whatever zoom, so that a million tokens need no pixel matrix.
const D = JSON.parse(document.getElementById('data').textContent);
// Dispatches come as lengths of runs and their ranks in turn, and are read as the rank of each chunk. Chunks of one row
// say that the planner cut wherever it liked: then runs are what there is to count.
const NUM_RUNS = D.dispatch.length / 2;
for (const key of ['dispatch', 'dispatch_k']) {
  if (D[key]) D[key] = Int32Array.from(D[key].flatMap((n, i) => i % 2 ? [] : Array(n).fill(D[key][i + 1])));
}
const $ = id => document.getElementById(id);
const R = D.cp_size, NQ = D.mask.seqlen_q, NK = D.mask.seqlen_k, NOTE_PAD = D.pad_size_q || D.pad_size_k;
const fmt = n => Math.round(n).toLocaleString('en-US');
const short = n => n >= 1e12 ? (n / 1e12).toFixed(2) + ' T' : n >= 1e9 ? (n / 1e9).toFixed(2) + ' G' : n >= 1e6 ? (n / 1e6).toFixed(2) + ' M' : n >= 1e4 ? (n / 1e3).toFixed(1) + ' K' : fmt(n);
const bytes = b => { const u = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']; let i = 0; while (b >= 1024 && i < 5) { b /= 1024; i++; } return (i && b < 100 ? b.toFixed(b < 10 ? 2 : 1) : Math.round(b)) + ' ' + u[i]; };
const time = s => s >= 1 ? s.toFixed(2) + ' s' : s >= 1e-3 ? (s * 1e3).toFixed(2) + ' ms' : (s * 1e6).toFixed(1) + ' µs';
const count = (n, word) => `${fmt(n)} ${word}${n === 1 ? '' : 's'}`;
const pct = (a, b) => b ? (100 * a / b).toFixed(a / b < 0.1 ? 1 : 0) + ' %' : '–';
const esc = s => String(s).replace(/[&<>"]/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'}[c]));

// ---- colours
const EIGHT = ['#4c78dd', '#f2994a', '#27a783', '#e4577b', '#8e6bd8', '#d9ab1f', '#3fb4d4', '#a0715a'];
const rankColor = r => R <= 8 ? EIGHT[r] : `hsl(${(r * 137.508) % 360} ${58 + (r % 3) * 8}% ${52 + (r % 4) * 4}%)`;
const STAGES = ['#8a93a8', '#4c78dd', '#f2994a', '#27a783', '#e4577b', '#8e6bd8', '#d9ab1f', '#3fb4d4'];
const stageColor = s => STAGES[s === 0 ? 0 : 1 + (s - 1) % 7];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgbCache = {};
function rgb(color) {
  if (!rgbCache[color]) { probe.fillStyle = color; probe.fillRect(0, 0, 1, 1); rgbCache[color] = probe.getImageData(0, 0, 1, 1).data; }
  return rgbCache[color];
}

// ---- head and tiles
$('title').textContent = D.mask.name;
$('subtitle').textContent = `${fmt(NQ)}${NQ === NK ? '' : ' × ' + fmt(NK)} tokens over ${R} rank${R === 1 ? '' : 's'} · ${D.heads.q} query and ${D.heads.kv} key/value heads of ${D.heads.dim}${D.heads.dim_v === D.heads.dim ? '' : ' / ' + D.heads.dim_v} · ${D.heads.dtype}` + (NOTE_PAD ? ` · padded by ${fmt(D.pad_size_q)} rows` : '');
document.title = 'Tangram: ' + D.mask.name;
const peak = Math.max(...D.ranks.map(r => r.peak_bytes));
const tiles = [
  ['balance', D.balance.toFixed(4), 'largest area / mean'],
  D.grid ? ['received', bytes(D.grid.forward_bytes + D.grid.backward_bytes), 'by all ranks, both passes'] : ['K/V rows moved', short(D.rows_moved), D.rows_ring ? pct(D.rows_moved, D.rows_ring) + ' of Ring' : 'one rank'],
  ['visible cells', short(D.mask.area), pct(D.mask.area, NQ * NK) + ' of the square'],
  D.grid ? ['strategy', D.strategy.replace('_', ' '), D.grid.text] : ['dispatch', D.algorithm.replace('_', ' '), D.chunk_size > 1 ? `${count(D.dispatch.length, 'chunk')} of ${fmt(D.chunk_size)}` : count(NUM_RUNS, 'run') + ', cut at any row'],
  ['peak memory', bytes(peak), 'of a rank, forward + backward'],
  ['planned in', time(D.plan_ms / 1e3), 'on one core'],
];
$('tiles').innerHTML = tiles.map(([k, v, s]) => `<div class="tile"><span>${k}</span><b>${esc(v)}</b><small>${esc(s)}</small></div>`).join('');

// ---- mask
const canvas = $('mask'), ctx = canvas.getContext('2d');
const layer = document.createElement('canvas'), lctx = layer.getContext('2d');
const strip = document.createElement('canvas'), sctx = strip.getContext('2d');
const view = {q: 0, k: 0, span: Math.max(NQ, NK)};
let byStage = false;
const num = D.slices.length / 6;
const rankOfRow = i => D.dispatch[Math.min(D.dispatch.length - 1, Math.floor(i / D.chunk_size))];
const kDispatch = D.dispatch_k || D.dispatch, kChunk = D.chunk_size_k || D.chunk_size;
const rankOfKey = j => kDispatch[Math.min(kDispatch.length - 1, Math.floor(j / kChunk))];

// Corners of the rectangle [q0, q1) x [k0, k1) cut by the band, clipped half plane by half plane. A cell (i, j) is the
// unit square at (j, i), so the band's borders run half a cell outside the diagonals of its outermost cells.
function polygon(s) {
  const o = s * 6, S = D.slices, q0 = S[o], q1 = S[o + 1], k0 = S[o + 2], k1 = S[o + 3];
  let p = [[k0, q0], [k1, q0], [k1, q1], [k0, q1]];
  if (S[o + 4] !== null) p = clip(p, (x, y) => x - y - (S[o + 4] - 0.5));
  if (S[o + 5] !== null) p = clip(p, (x, y) => S[o + 5] + 0.5 - (x - y));
  return p;
}
function clip(p, f) {
  const out = [];
  for (let i = 0; i < p.length; i++) {
    const a = p[i], b = p[(i + 1) % p.length], fa = f(a[0], a[1]), fb = f(b[0], b[1]);
    if (fa >= 0) out.push(a);
    if ((fa < 0) !== (fb < 0)) { const t = fa / (fa - fb); out.push([a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])]); }
  }
  return out;
}
const polygons = Array.from({length: num}, (_, s) => polygon(s));
const boxes = polygons.map(p => ({k0: Math.min(...p.map(c => c[0])), k1: Math.max(...p.map(c => c[0])), q0: Math.min(...p.map(c => c[1])), q1: Math.max(...p.map(c => c[1]))}));

// Colours of pixel rows: the mean over the chunks that a pixel row covers.
function rowStrip(h, scale) {
  strip.width = 1; strip.height = h;
  const image = sctx.createImageData(1, h);
  for (let y = 0; y < h; y++) {
    const a = Math.floor((view.q + y / scale) / D.chunk_size), b = Math.max(a, Math.ceil((view.q + (y + 1) / scale) / D.chunk_size) - 1);
    let n = 0; const sum = [0, 0, 0], step = Math.ceil((b - a + 1) / 64);
    for (let c = Math.max(0, a); c <= Math.min(b, D.dispatch.length - 1); c += step, n++) {
      const v = rgb(rankColor(D.dispatch[c])); for (let i = 0; i < 3; i++) sum[i] += v[i];
    }
    if (n) { for (let i = 0; i < 3; i++) image.data[y * 4 + i] = sum[i] / n; image.data[y * 4 + 3] = 255; }
  }
  sctx.putImageData(image, 0, 0);
}
// For colours by stage: one strip per rank along the keys, laid into the pixel rows of its chunks.
function stageLayer(target, w, h, scale) {
  const strips = {};
  for (let y = 0; y < h; y++) {
    const i = view.q + (y + 0.5) / scale;
    if (i < 0 || i >= NQ) continue;
    const r = rankOfRow(i);
    if (!strips[r]) {
      const c = document.createElement('canvas'); c.width = w; c.height = 1; const x = c.getContext('2d');
      for (const [b, e, s] of D.stage_runs[r]) {
        const x0 = (b - view.k) * scale, x1 = (e - view.k) * scale;
        if (x1 < 0 || x0 > w) continue;
        x.fillStyle = stageColor(s); x.fillRect(x0, 0, x1 - x0, 1);
      }
      strips[r] = c;
    }
    target.drawImage(strips[r], 0, y);
  }
}
function draw() {
  const dpr = window.devicePixelRatio || 1, w = Math.max(1, Math.round(canvas.clientWidth * dpr)), h = w;
  if (canvas.width !== w) { canvas.width = layer.width = w; canvas.height = layer.height = h; }
  const scale = w / view.span;
  lctx.setTransform(1, 0, 0, 1, 0, 0); lctx.globalCompositeOperation = 'source-over'; lctx.clearRect(0, 0, w, h);
  // Disjoint slices that share a pixel add up to their common coverage.
  lctx.globalCompositeOperation = 'lighter'; lctx.fillStyle = '#000';
  // What is smaller than a pixel or two, such as one document among a million tokens, stays a visible dot.
  const dot = 1.6 * dpr;
  for (let n = 0; n < num; n++) {
    const p = polygons[n], b = boxes[n];
    if (!p.length || b.q1 < view.q || b.q0 > view.q + view.span || b.k1 < view.k || b.k0 > view.k + view.span) continue;
    if (Math.max(b.q1 - b.q0, b.k1 - b.k0) * scale < dot) { lctx.fillRect((b.k0 - view.k) * scale, (b.q0 - view.q) * scale, dot, dot); continue; }
    lctx.beginPath();
    p.forEach(([x, y], i) => { const X = (x - view.k) * scale, Y = (y - view.q) * scale; i ? lctx.lineTo(X, Y) : lctx.moveTo(X, Y); });
    lctx.closePath(); lctx.fill();
  }
  lctx.globalCompositeOperation = 'source-in';
  if (byStage && D.stage_runs) {
    const c = document.createElement('canvas'); c.width = w; c.height = h;
    stageLayer(c.getContext('2d'), w, h, scale); lctx.drawImage(c, 0, 0);
  } else {
    rowStrip(h, scale); lctx.imageSmoothingEnabled = false; lctx.drawImage(strip, 0, 0, 1, h, 0, 0, w, h);
  }
  ctx.setTransform(1, 0, 0, 1, 0, 0); ctx.clearRect(0, 0, w, h);
  const X = k => (k - view.k) * scale, Y = q => (q - view.q) * scale;
  ctx.fillStyle = css('--card'); ctx.fillRect(X(0), Y(0), NK * scale, NQ * scale);
  grid(w, h, scale, X, Y, dpr);
  ctx.drawImage(layer, 0, 0);
  ctx.strokeStyle = css('--line'); ctx.lineWidth = dpr; ctx.strokeRect(X(0), Y(0), NK * scale, NQ * scale);
  $('mask-view').textContent = `queries ${fmt(Math.max(0, view.q))}–${fmt(Math.min(NQ, view.q + view.span))} ↓   keys ${fmt(Math.max(0, view.k))}–${fmt(Math.min(NK, view.k + view.span))} →`;
}
function grid(w, h, scale, X, Y, dpr) {
  const step = niceStep(view.span / 6);
  ctx.strokeStyle = css('--grid'); ctx.fillStyle = css('--dim'); ctx.lineWidth = dpr; ctx.font = `${10.5 * dpr}px system-ui, "DejaVu Sans", sans-serif`;
  const label = v => v >= 1024 && v % 1024 === 0 ? v / 1024 + 'K' : String(v);
  for (let v = Math.max(0, Math.ceil(Math.min(view.q, view.k) / step) * step); v <= Math.max(view.q, view.k) + view.span; v += step) {
    if (v <= NQ && v >= view.q) { ctx.beginPath(); ctx.moveTo(X(0), Y(v)); ctx.lineTo(X(NK), Y(v)); ctx.stroke(); }
    if (v <= NK && v >= view.k) { ctx.beginPath(); ctx.moveTo(X(v), Y(0)); ctx.lineTo(X(v), Y(NQ)); ctx.stroke(); if (v > 0) ctx.fillText(label(v), X(v) + 3 * dpr, 12 * dpr); }
  }
}
function niceStep(x) {  // powers of two: chunks and blocks are
  return Math.max(1, Math.pow(2, Math.round(Math.log2(x))));
}
let pending = false;
function redraw() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; draw(); }); } }
function clampView() {
  const n = Math.max(NQ, NK);
  view.span = Math.min(Math.max(view.span, 16), n);
  view.q = Math.min(Math.max(view.q, 0), n - view.span); view.k = Math.min(Math.max(view.k, 0), n - view.span);
  canvas.style.touchAction = view.span < n ? 'none' : 'pan-y';
}
function zoom(f, fx = 0.5, fy = 0.5) {
  const k = view.k + fx * view.span, q = view.q + fy * view.span; view.span *= f;
  view.span = Math.min(Math.max(view.span, 16), Math.max(NQ, NK));
  view.k = k - fx * view.span; view.q = q - fy * view.span; clampView(); redraw();
}
function pan(dx, dy) { view.k += dx * view.span; view.q += dy * view.span; clampView(); redraw(); }
canvas.addEventListener('wheel', e => { e.preventDefault(); const b = canvas.getBoundingClientRect(); zoom(Math.exp(e.deltaY * 0.0016), (e.clientX - b.left) / b.width, (e.clientY - b.top) / b.height); }, {passive: false});
// One pointer drags, two zoom; a tap asks what lies there. While all is shown a finger that moves up or down scrolls the
// page instead (see clampView): the mask fills the screen of a phone, and nothing below it could be reached.
const pointers = new Map();
let tapped = null;
canvas.addEventListener('pointerdown', e => { tapped = pointers.size ? null : [e.clientX, e.clientY]; pointers.set(e.pointerId, [e.clientX, e.clientY]); canvas.setPointerCapture(e.pointerId); });
const release = e => { pointers.delete(e.pointerId); };
canvas.addEventListener('pointerup', e => {
  const b = canvas.getBoundingClientRect();
  release(e);
  if (e.pointerType !== 'mouse' && tapped && Math.hypot(e.clientX - tapped[0], e.clientY - tapped[1]) < 8) tip(e.clientX - b.left, e.clientY - b.top, b.width);
});
canvas.addEventListener('pointercancel', release);
canvas.addEventListener('pointermove', e => {
  const b = canvas.getBoundingClientRect(), last = pointers.get(e.pointerId);
  if (!last) { tip(e.clientX - b.left, e.clientY - b.top, b.width); return; }
  pointers.set(e.pointerId, [e.clientX, e.clientY]);
  const other = [...pointers].find(([id]) => id !== e.pointerId);
  if (other) {
    const [x, y] = other[1], far = p => Math.max(1, Math.hypot(p[0] - x, p[1] - y));
    zoom(far(last) / far([e.clientX, e.clientY]), (x - b.left) / b.width, (y - b.top) / b.height);
  } else {
    pan((last[0] - e.clientX) / b.width, (last[1] - e.clientY) / b.height);
  }
  $('tip').hidden = true;
});
canvas.addEventListener('pointerleave', e => { if (e.pointerType === 'mouse') $('tip').hidden = true; });
function tip(x, y, w) {
  const j = Math.floor(view.k + x / w * view.span), i = Math.floor(view.q + y / w * view.span), t = $('tip');
  if (i < 0 || j < 0 || i >= NQ || j >= NK) { t.hidden = true; return; }
  let slice = -1;
  for (let s = 0; s < num && slice < 0; s++) {
    const o = s * 6, S = D.slices, d = j - i;
    if (i >= S[o] && i < S[o + 1] && j >= S[o + 2] && j < S[o + 3] && (S[o + 4] === null || d >= S[o + 4]) && (S[o + 5] === null || d <= S[o + 5])) slice = s;
  }
  const r = rankOfRow(i), owner = rankOfKey(j);
  t.innerHTML = `query ${fmt(i)} on rank ${r}<br>key ${fmt(j)} ${owner === r ? 'local' : 'from rank ' + owner}<br>` + (slice < 0 ? 'not visible' : `slice ${slice}: ${fmt(D.slices[slice * 6 + 1] - D.slices[slice * 6])} × ${fmt(D.slices[slice * 6 + 3] - D.slices[slice * 6 + 2])}`);
  t.hidden = false;
  t.style.left = Math.min(x + 14, w - t.offsetWidth - 4) + 'px'; t.style.top = Math.min(y + 14, w - t.offsetHeight - 4) + 'px';
}
function setColor(stage) {
  byStage = stage && !!D.stage_runs;
  $('by-rank').classList.toggle('on', !byStage); $('by-stage').classList.toggle('on', byStage);
  $('legend').innerHTML = (byStage ? D.stages.forward.map((_, s) => [stageColor(s), s ? 'stage ' + s : 'local']) : Array.from({length: Math.min(R, 16)}, (_, r) => [rankColor(r), 'rank ' + r]))
    .map(([c, l]) => `<span><i style="background:${c}"></i>${l}</span>`).join('') + (!byStage && R > 16 ? `<span>… ${R - 16} more</span>` : '');
  redraw();
}
$('by-rank').onclick = () => setColor(false);
$('by-stage').onclick = () => setColor(true);
if (!D.stage_runs) $('by-stage').disabled = true;
// What only Tangram's own plans have.
if (D.grid) for (const id of ['matrix', 'moved', 'choices']) $(id).closest('.card').hidden = true;
$('mask-caption').textContent = 'Queries down, keys across; coloured is what a query sees. The colour is the rank that holds the query' + (D.grid && D.grid.head_ranks > 1 ? '; ranks that exchange heads compute it together.' : ' and computes the cell.');
$('mask-note').textContent = D.drawn_area < D.mask.area ? `The ${fmt(num)} largest of ${fmt(D.mask.slices)} slices are drawn, ${pct(D.drawn_area, D.mask.area)} of the area.` : '';
function showAll() { zoom(Infinity); }
$('zoom-in').onclick = () => zoom(0.7);
$('zoom-out').onclick = () => zoom(1 / 0.7);
$('zoom-all').onclick = showAll;
clampView();
// Where nothing hovers, a tap shows what a pointer would be told.
document.addEventListener('pointerup', e => {
  const shape = e.pointerType !== 'mouse' && e.target.closest ? e.target.closest('main svg *') : null, title = shape && shape.querySelector('title'), box = $('tap');
  box.hidden = !title;
  if (!title) return;
  box.textContent = title.textContent;
  box.style.left = Math.max(4, Math.min(e.clientX - box.offsetWidth / 2, innerWidth - box.offsetWidth - 4)) + 'px';
  box.style.top = Math.max(4, e.clientY - box.offsetHeight - 24) + 'px';
});
document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const onMask = document.activeElement === canvas, act = {
    '+': () => zoom(0.7), '=': () => zoom(0.7), '-': () => zoom(1 / 0.7), '0': showAll,
    c: () => setColor(!byStage), t: () => setTheme(dark() ? 'light' : 'dark')}[e.key]
    || (onMask && {ArrowLeft: () => pan(-0.12, 0), ArrowRight: () => pan(0.12, 0), ArrowUp: () => pan(0, -0.12), ArrowDown: () => pan(0, 0.12)}[e.key]);
  if (act) { act(); if (onMask) e.preventDefault(); }
});

// ---- balance: area per rank against the mean
function svg(w, h, body) { return `<svg viewBox="0 0 ${w} ${h}" role="img">${body}</svg>`; }
function balance() {
  if (R > 32) return balanceColumns();
  const shown = D.ranks.slice(0, 64), W = 520, row = R <= 16 ? 24 : R <= 32 ? 13 : 9, left = 52, right = 118, top = 20, mean = D.mask.area / R || 1;
  const max = Math.max(mean, ...D.ranks.map(r => r.area)), x = a => a / max * (W - left - right);
  let s = '';
  shown.forEach((r, i) => {
    const y = top + i * row, hgt = row * 0.62, mid = y + hgt / 2 + 4;
    s += `<rect class="track" x="${left}" y="${y}" width="${W - left - right}" height="${hgt}" rx="3"/><rect x="${left}" y="${y}" width="${x(r.area)}" height="${hgt}" rx="3" fill="${rankColor(r.rank)}"><title>rank ${r.rank}: ${fmt(r.area)} cells</title></rect>`;
    if (row > 12) s += `<text class="dim" x="0" y="${mid}">rank ${r.rank}</text><text x="${W - right + 10}" y="${mid}">${(r.area / mean).toFixed(4)}</text><text class="dim" x="${W}" y="${mid}" text-anchor="end">${short(r.area)}</text>`;
  });
  const h = top + shown.length * row, m = left + x(mean);
  s += `<line x1="${m}" x2="${m}" y1="${top - 6}" y2="${h - row * 0.25}" stroke="currentColor" stroke-width="1" stroke-dasharray="3 3"/><text class="dim" x="${m}" y="${top - 9}" text-anchor="end">mean</text>`;
  $('balance').innerHTML = svg(W, h, s); $('balance-note').textContent = `largest / mean = ${D.balance.toFixed(4)}`;
}

// Many ranks: a column each, for what it has above or below the mean.
function balanceColumns() {
  const W = 520, H = 150, left = 46, top = 8, mean = D.mask.area / R || 1, step = (W - left) / R;
  const off = D.ranks.map(r => r.area / mean - 1), reach = Math.max(0.001, ...off.map(Math.abs)), mid = top + H / 2, y = f => mid - f / reach * (H / 2 - 8);
  let s = '';
  for (const f of [reach, 0, -reach]) s += `<line class="axis" x1="${left}" x2="${W}" y1="${y(f)}" y2="${y(f)}"/><text class="dim" x="${left - 6}" y="${y(f) + 4}" text-anchor="end">${f > 0 ? '+' : ''}${f ? (100 * f).toFixed(1) + ' %' : 'mean'}</text>`;
  D.ranks.forEach((r, i) => {
    const a = Math.min(mid, y(off[i])), h = Math.max(0.8, Math.abs(y(off[i]) - mid));
    s += `<rect x="${(left + i * step).toFixed(2)}" y="${a.toFixed(2)}" width="${Math.max(0.4, step - Math.min(1, step / 4)).toFixed(2)}" height="${h.toFixed(2)}" fill="${rankColor(r.rank)}"><title>rank ${r.rank}: ${fmt(r.area)} cells, ${(r.area / mean).toFixed(4)} of the mean</title></rect>`;
  });
  for (const i of [0, R >> 2, R >> 1, 3 * R >> 2, R - 1]) s += `<text class="dim" x="${left + (i + 0.5) * step}" y="${top + H + 14}" text-anchor="${i ? i === R - 1 ? 'end' : 'middle' : 'start'}">${i}</text>`;
  $('balance').innerHTML = svg(W, top + H + 20, s); $('balance-note').textContent = `area against the mean; largest / mean = ${D.balance.toFixed(4)}`;
}

// ---- who sends what
function matrix() {
  if (D.grid) return;
  if (R === 1) { $('matrix').innerHTML = '<p class="note">One rank: nothing moves.</p>'; return; }
  // A row and a column are a rank, or as many neighbours as rows_sent_group says. On the diagonal of ranks nothing moves.
  const group = D.rows_sent_group, G = D.rows_sent.length, name = a => group === 1 ? `rank ${a}` : `ranks ${a * group}–${Math.min(R, (a + 1) * group) - 1}`;
  const W = 520, left = 46, top = 34, cell = (W - left - 62) / G, max = Math.max(1, ...D.rows_sent.flat()), labels = G <= 16, every = Math.ceil(G / 8);
  let s = `<text class="dim" x="${left + cell * G / 2}" y="10" text-anchor="middle">to rank</text><text class="dim" transform="translate(10 ${top + cell * G / 2}) rotate(-90)" text-anchor="middle">from rank</text>`;
  D.rows_sent.forEach((row, a) => {
    const sent = row.reduce((x, y) => x + y, 0), y = top + a * cell;
    if (labels || a % every === 0) s += `<text class="dim" x="${left - 8}" y="${y + cell / 2 + 4}" text-anchor="end">${a * group}</text><text class="dim" x="${left + (a + 0.5) * cell}" y="${top - 8}" text-anchor="middle">${a * group}</text>`;
    if (labels) s += `<text class="dim" x="${W}" y="${y + cell / 2 + 4}" text-anchor="end">${short(sent)}</text>`;
    row.forEach((n, b) => {
      const f = Math.sqrt(n / max), x = left + b * cell, g = Math.min(1.5, cell * 0.06);
      s += a === b && group === 1 ? `<rect x="${x + g}" y="${y + g}" width="${cell - 2 * g}" height="${cell - 2 * g}" rx="${Math.min(4, cell / 6)}" fill="${rankColor(a)}" opacity=".22"/>`
        : `<rect class="track" x="${x + g}" y="${y + g}" width="${cell - 2 * g}" height="${cell - 2 * g}" rx="${Math.min(4, cell / 6)}"/><rect x="${x + g}" y="${y + g}" width="${cell - 2 * g}" height="${cell - 2 * g}" rx="${Math.min(4, cell / 6)}" fill="${group === 1 ? rankColor(a) : 'var(--accent)'}" fill-opacity="${n ? (0.12 + 0.88 * f).toFixed(3) : 0}"><title>${name(a)} → ${name(b)}: ${fmt(n)} rows, ${bytes(n * D.kv_row_bytes)}</title></rect>`;
      if (n && cell > 44) s += `<text x="${x + cell / 2}" y="${y + cell / 2 + 4}" text-anchor="middle" pointer-events="none" style="font-size:11px;fill:${f > 0.62 ? '#fff' : 'var(--ink)'}">${short(n)}</text>`;
    });
  });
  $('matrix').innerHTML = svg(W, top + cell * G + 4, s);
  if (group > 1) $('matrix-note').textContent = `Each row and column is ${group} neighbouring ranks, named by the first; the diagonal is what moves among them.`;
}

// ---- dispatch: the sequence as a strip, one colour a rank
function dispatch() {
  const W = 1240, H = 46, n = D.dispatch.length; let s = '', a = 0;
  const runs = [];
  for (let i = 1; i <= n; i++) if (i === n || D.dispatch[i] !== D.dispatch[a]) { runs.push([a, i, D.dispatch[a]]); a = i; }
  const gap = runs.length < 400 ? 0.8 : 0;
  for (const [b, e, r] of runs) s += `<rect x="${(b / n * W).toFixed(2)}" y="0" width="${Math.max(0.3, (e - b) / n * W - gap).toFixed(2)}" height="${H}" fill="${rankColor(r)}"><title>rows ${fmt(b * D.chunk_size)}–${fmt(e * D.chunk_size)} on rank ${r}</title></rect>`;
  for (let i = 0; i <= 8; i++) s += `<text class="dim" x="${i / 8 * W}" y="${H + 17}" text-anchor="${i === 0 ? 'start' : i === 8 ? 'end' : 'middle'}">${fmt(NQ * i / 8)}</text>`;
  $('dispatch').innerHTML = svg(W, H + 22, s);
  $('dispatch-note').textContent = D.chunk_size > 1 ? `${count(n, 'chunk')} of ${fmt(D.chunk_size)} rows, ${fmt(n / R)} a rank, in ${count(NUM_RUNS, 'run')}` : `${fmt(n / R)} rows a rank, in ${count(NUM_RUNS, 'run')}, cut at any row`;
}

// ---- time line
// Stages are chunks of heads where a strategy exchanges these, and steps where K/V move from rank to rank.
const word = !D.grid ? 'stage' : D.grid.head_ranks > 1 && D.grid.row_groups === 1 ? 'chunk' : 'step';
const stageName = s => D.grid || s ? `${word} ${s}` : 'local';
function timeline() {
  const T = D.timeline, shown = T.ranks.length, ev = T.events, place = new Map(T.ranks.map((r, i) => [r, i]));
  if (!ev.length) { $('timeline').closest('.card').hidden = true; return; }
  $('timeline-kind').textContent = T.measured ? 'measured on this machine' : 'predicted by the cost model, not measured';
  $('timeline-kind').classList.toggle('measured', T.measured);
  const end = Math.max(1e-9, ...ev.map(e => e[5])), W = 1240, left = 60, row = shown <= 16 ? 30 : 18, x = t => left + t / end * (W - left), H = shown * row;
  const split = Math.min(...ev.filter(e => e[2]).map(e => e[4]), end);
  let s = '';
  const steps = 6, raw = end / steps, mag = Math.pow(10, Math.floor(Math.log10(raw))), step = [1, 2, 5, 10].map(m => m * mag).find(v => v >= raw);
  for (let t = 0; t <= end; t += step) s += `<line class="axis" x1="${x(t)}" x2="${x(t)}" y1="0" y2="${H}"/><text class="dim" x="${x(t)}" y="${H + 16}" text-anchor="middle">${time(t / 1e6)}</text>`;
  T.ranks.forEach((r, i) => { s += `<text class="dim" x="0" y="${i * row + row * 0.6}">rank ${r}</text>`; });
  for (const [r, lane, back, stage, b, e] of ev) {
    const y = place.get(r) * row + [row * 0.12, row * 0.6, row * 0.77, row * 0.12][lane], thick = !lane || lane === 3, h = thick ? row * 0.44 : row * 0.14, w = Math.max(0.6, x(e) - x(b) - 0.6);
    s += `<rect x="${x(b).toFixed(2)}" y="${y}" width="${w.toFixed(2)}" height="${h}" rx="${Math.min(2, w / 3)}" fill="${[stageColor(stage), 'var(--warn)', 'var(--dim)', 'var(--ink)'][lane]}" ${back && !lane ? 'fill-opacity=".72"' : ''}><title>rank ${r}, ${back ? 'backward' : 'forward'}, ${stageName(stage)}: ${['attention', 'inputs move', 'results move', 'copies and sums'][lane]} ${time((e - b) / 1e6)}</title></rect>`;
    if (!lane && w > 70 && row > 20) s += `<text x="${x(b) + w / 2}" y="${y + h / 2 + 4}" text-anchor="middle" pointer-events="none" style="font-size:10.5px;fill:#fff">${stageName(stage)}</text>`;
  }
  if (split < end) s += `<line x1="${x(split)}" x2="${x(split)}" y1="-6" y2="${H}" stroke="currentColor" stroke-dasharray="3 3"/><text class="dim" x="${x(split) - 6}" y="-8" text-anchor="end">forward</text><text class="dim" x="${x(split) + 6}" y="-8">backward</text>`;
  $('timeline').innerHTML = `<div style="padding-top:14px">${svg(W, H + 20, s)}</div>`;
  const stages = D.grid ? 1 + Math.max(...ev.map(e => e[3])) : Math.max(D.stages.forward.length, D.stages.backward.length);
  $('timeline-legend').innerHTML = Array.from({length: Math.min(stages, 8)}, (_, i) => `<span><i style="background:${stageColor(i)}"></i>compute, ${stageName(i)}</span>`).join('') + '<span><i style="background:var(--warn);height:5px;vertical-align:2px"></i>inputs move</span><span><i style="background:var(--dim);height:5px;vertical-align:2px"></i>results move</span>' + (ev.some(e => e[1] === 3) ? '<span><i style="background:var(--ink)"></i>copies and sums</span>' : '') + (R > shown ? `<span>the ${shown} slowest of ${R} ranks, slowest first</span>` : '');
}

// ---- rows moved, choices, ranks
function moved() {
  if (D.grid) return;
  const list = [['this plan', D.rows_moved, 1], ['least for this dispatch', D.rows_lower_bound], ['Ulysses, same bytes', D.rows_ulysses], ['Ring', D.rows_ring]];
  const W = 520, row = 44, max = Math.max(1, ...list.map(l => l[1]));
  $('moved').innerHTML = svg(W, list.length * row, list.map(([name, n, on], i) => `<text x="0" y="${i * row + 13}" ${on ? 'style="font-weight:640"' : ''}>${name}</text><text class="dim" x="${W}" y="${i * row + 13}" text-anchor="end">${fmt(n)} rows · ${bytes(n * D.kv_row_bytes)}</text><rect class="track" x="0" y="${i * row + 19}" width="${W}" height="12" rx="3"/><rect x="0" y="${i * row + 19}" width="${Math.max(n ? 1 : 0, n / max * W)}" height="12" rx="3" fill="${on ? 'var(--accent)' : 'var(--dim)'}"/>`).join(''));
}
function choices() {
  if (D.grid) return;
  $('reasons').innerHTML = D.reasons.map(r => `<li>${esc(r)}</li>`).join('');
  if (D.choices.length < 2) return;
  const chosen = D.choices.find(c => c.chosen), isOff = c => chosen && c.balance > chosen.balance + 0.02;
  $('choices').innerHTML = `<div class="scroll"><table><tr><th>dispatch</th><th>chunk</th><th>balance</th><th>rows moved</th><th>exposed</th><th>step, predicted</th></tr>` + D.choices.map(c => `<tr class="${c.chosen ? 'on' : isOff(c) ? 'off' : ''}"><td>${esc(c.algorithm.replace('_', ' '))}${c.chosen ? ' ✓' : ''}</td><td>${fmt(c.chunk_size)}</td><td>${c.balance.toFixed(4)}</td><td>${fmt(c.rows_moved)}</td><td>${time(c.exposed_s)}</td><td>${time(c.step_s)}</td></tr>`).join('') + '</table></div>' + (D.choices.some(isOff) ? '<p class="note">Grey: less balanced than what was chosen.</p>' : '');
}
function ranks() {
  if (D.grid) $('ranks').innerHTML = '<table><tr><th>rank</th><th>query rows</th><th>area</th><th>of mean</th><th>peak memory</th></tr>' + D.ranks.map(r => `<tr><td><i style="background:${rankColor(r.rank)}"></i>${r.rank}</td><td>${fmt(r.rows)}</td><td>${fmt(r.area)}</td><td>${D.mask.area ? (r.area * R / D.mask.area).toFixed(4) : '–'}</td><td>${bytes(r.peak_bytes)}</td></tr>`).join('') + '</table>';
  else
  $('ranks').innerHTML = '<table><tr><th>rank</th><th>query rows</th><th>area</th><th>of mean</th><th>K/V rows</th><th>received</th><th>sent</th><th>slices</th><th>peak memory</th></tr>' + D.ranks.map(r => `<tr><td><i style="background:${rankColor(r.rank)}"></i>${r.rank}</td><td>${fmt(r.rows)}</td><td>${fmt(r.area)}</td><td>${D.mask.area ? (r.area * R / D.mask.area).toFixed(4) : '–'}</td><td>${fmt(r.kv_rows)}</td><td>${fmt(r.rows_received)}</td><td>${fmt(r.rows_sent)}</td><td>${fmt(r.slices)}</td><td>${bytes(r.peak_bytes)}</td></tr>`).join('') + '</table>';
  if (D.figures.length) $('figures').innerHTML = '<table>' + D.figures.map(([k, v]) => `<tr><td>${esc(k)}</td><td>${esc(v)}</td></tr>`).join('') + '</table>';
  else $('figures-card').hidden = true;
}

// ---- theme
const dark = () => document.documentElement.dataset.theme === 'dark';
function setTheme(name) { document.documentElement.dataset.theme = name; redraw(); }
const wanted = new URLSearchParams(location.search).get('theme') || location.hash.slice(1);
$('theme').onclick = () => setTheme(dark() ? 'light' : 'dark');
$('footer').innerHTML = `Written by tangram ${D.version}.<span class="hint"> Works offline; press t for light or dark.</span>`;
balance(); matrix(); dispatch(); timeline(); moved(); choices(); ranks();
setTheme(['light', 'dark'].includes(wanted) ? wanted : matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
setColor(false);
new ResizeObserver(redraw).observe(canvas);
matchMedia('print').addEventListener('change', draw);

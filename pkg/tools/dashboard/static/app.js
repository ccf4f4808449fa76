// SPDX-License-Identifier: Apache-2.0
// Keeps a page up to date by Server-Sent Events, filters lists while typing, and adds keys. Pages work without it.
'use strict';
(() => {
  const $ = (id) => document.getElementById(id);
  const state = $('state');
  const filter = $('filter');
  let live = document.body.dataset.live;
  const follows = Boolean(live); // messages do not
  let stream = null;
  let heard = 0;
  let retry = 1000;
  let timer = 0;

  function show(word, kind) {
    if (state.textContent !== word) state.textContent = word;
    state.className = 'state ' + kind;
    document.body.classList.toggle('stale', kind === 'lost');
  }

  function parse(markup) {
    const t = document.createElement('template');
    t.innerHTML = markup; // which the server escaped
    return t.content.firstElementChild;
  }

  // apply replaces elements and brings lists into order, and leaves all else, with the focus, where it is.
  function apply(update) {
    const focused = document.activeElement;
    const row = focused && focused.closest ? focused.closest('[id]') : null;
    const fresh = new Map();
    for (const [id, markup] of Object.entries(update.set || {})) {
      const element = parse(markup);
      const old = $(id);
      ages(element);
      if (old && old.isEqualNode(element)) continue; // such as what was not known before
      if (old) {
        if (old.open && element.matches('details')) element.open = true;
        old.replaceWith(element);
        if (element.matches('.row')) flash(element);
      } else {
        fresh.set(id, element);
      }
    }
    for (const [list, ids] of Object.entries(update.order || {})) order($(list), ids, fresh);
    if (row && !document.contains(focused) && $(row.id)) {
      const again = $(row.id).querySelector('a');
      if (again) again.focus({ preventScroll: true });
    }
    if (update.live) live = document.body.dataset.live = update.live;
    document.body.dataset.updates = Number(document.body.dataset.updates || 0) + 1;
  }

  function order(list, ids, fresh) {
    if (!list) return;
    const wanted = new Set(ids);
    for (const child of [...list.children]) if (!wanted.has(child.id)) child.remove();
    let at = list.firstElementChild;
    let missing = false;
    for (const id of ids) {
      if (at && at.id === id) {
        at = at.nextElementSibling;
        continue;
      }
      const element = fresh.get(id) || $(id);
      if (element) list.insertBefore(element, at);
      else missing = true;
    }
    if (missing) reconnect('');
  }

  function flash(element) {
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) return;
    element.classList.add('changed');
    element.addEventListener('animationend', () => element.classList.remove('changed'), { once: true });
  }

  // ages shows times as ages, as kubectl does.
  function ages(root) {
    for (const time of root.querySelectorAll('time.age')) {
      const minutes = Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 60000));
      const [h, d] = [Math.floor(minutes / 60), Math.floor(minutes / 1440)];
      const text = d ? `${d} d ${h % 24} h` : h ? `${h} h ${minutes % 60} min` : minutes ? `${minutes} min` : 'less than a minute';
      if (time.textContent !== text) time.textContent = text;
    }
  }
  ages(document);
  setInterval(() => ages(document), 15000);

  function address(seen) {
    const url = new URL(location.href);
    url.hash = '';
    url.searchParams.set('live', seen);
    return url;
  }

  function connect() {
    clearTimeout(timer);
    if (stream) stream.close();
    stream = new EventSource(address(live));
    stream.addEventListener('update', (e) => {
      alive();
      const update = JSON.parse(e.data);
      if (update.live.split('.')[0] !== document.body.dataset.build) {
        location.reload(); // of another release
        return;
      }
      apply(update);
    });
    stream.addEventListener('beat', alive);
    stream.addEventListener('gone', () => location.reload());
    stream.onerror = lost;
    heard = Date.now();
  }

  function alive() {
    heard = Date.now();
    retry = 1000;
    show('live', 'live');
  }

  // pause closes the stream. Browsers open six connections to a host by HTTP/1.1: seven tabs with a stream each would leave none.
  function pause() {
    clearTimeout(timer);
    if (stream) stream.close();
    stream = null;
  }

  // lost connects again, later each time. EventSource would do so by itself, but not after an error of HTTP.
  function lost() {
    pause();
    show('disconnected', 'lost');
    timer = setTimeout(connect, retry);
    retry = Math.min(2 * retry, 30000);
  }

  function reconnect(seen) {
    live = seen;
    connect();
  }

  setInterval(() => { if (stream && Date.now() - heard > 25000) lost(); }, 5000);
  document.addEventListener('visibilitychange', () => {
    if (!follows) return;
    if (!document.hidden) {
      connect();
      return;
    }
    pause();
    show('paused', 'wait');
  });

  // Filter: the server filters, and the stream brings what is left.
  if (filter) {
    let typing = 0;
    const go = () => {
      const url = new URL(location.href);
      const text = filter.value.trim();
      if (text) url.searchParams.set('q', text);
      else url.searchParams.delete('q');
      url.searchParams.delete('page');
      if (url.href === location.href) return;
      history.replaceState(null, '', url);
      reconnect('');
    };
    filter.addEventListener('input', () => { clearTimeout(typing); typing = setTimeout(go, 150); });
    filter.form.addEventListener('submit', (e) => { e.preventDefault(); clearTimeout(typing); go(); });
  }

  const help = $('help');
  $('help-open').addEventListener('click', () => help.showModal());

  // Rows are the items of a list, and the links of tables elsewhere.
  function rows() {
    const items = document.querySelectorAll('.rows > .row');
    return items.length ? [...items].map((r) => r.querySelector('a')) : [...document.querySelectorAll('main td a')];
  }

  function move(by) {
    const all = rows();
    if (!all.length) return;
    const here = all.findIndex((a) => a === document.activeElement || a.closest('.row')?.contains(document.activeElement));
    const next = all[Math.max(0, Math.min(all.length - 1, here < 0 ? 0 : here + by))];
    next.focus();
    next.scrollIntoView({ block: 'nearest' });
  }

  const root = new URL(document.querySelector('.brand').href);
  let last = '';
  document.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || help.open) return;
    if (e.target.matches('input, textarea')) {
      if (e.key === 'Escape') {
        e.preventDefault(); // which empties a search field, and the list would stay filtered
        e.target.blur();
      }
      if (e.key === 'ArrowDown') { e.preventDefault(); move(0); }
      return;
    }
    const before = last;
    last = e.key;
    switch (before === 'g' ? 'g ' + e.key : e.key) {
      case '/': if (filter) { e.preventDefault(); filter.focus(); filter.select(); } break;
      case 'j': case 'ArrowDown': if (rows().length) { e.preventDefault(); move(1); } break;
      case 'k': case 'ArrowUp': if (rows().length) { e.preventDefault(); move(-1); } break;
      case 'g n': location.href = root; break;
      case 'g c': location.href = new URL('claims', root); break;
      case 'u': {
        const up = document.querySelector('nav [aria-current]');
        if (up) location.href = up.href;
        break;
      }
      case '?': help.showModal(); break;
    }
  });

  if (follows) {
    show('connecting', 'wait');
    if (!document.hidden) connect();
  }
})();

// Copied into report.html: a click on a column's head, or Enter there, sorts the table by it, again the other way round.
for (const head of document.querySelectorAll('.table thead th[scope]')) {
  const table = head.closest('table'), column = head.cellIndex;
  const value = (row) => row.cells[column].textContent.trim();
  const number = (text) => (/^[-+]?[\d.]/.test(text) ? parseFloat(text) : NaN);
  const sort = () => {
    const down = head.getAttribute('aria-sort') === 'ascending';
    const rows = [...table.tBodies[0].rows];
    const compare = (a, b) => {
      const x = number(value(a)), y = number(value(b));
      if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1; // what is no number goes last
      const order = Number.isNaN(x) ? value(a).localeCompare(value(b)) : x - y;
      return down ? -order : order;
    };
    for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    table.tBodies[0].append(...rows.sort(compare));
  };
  head.tabIndex = 0;
  head.addEventListener('click', sort);
  head.addEventListener('keydown', (event) => { if (event.key === 'Enter') sort(); });
}

// Copied into report.html: a click on a column's head, or Enter or space there, sorts the table by it, again the other way round.
for (const table of document.querySelectorAll('.table table')) {
  const heads = [...table.tHead.rows[0].cells].filter((head) => head.scope === 'col');
  const said = (row, column) => row.cells[column].textContent.trim();
  const number = (text) => (/^[-+]?[\d.]/.test(text) ? parseFloat(text) : NaN);
  const sort = (head) => {
    const column = head.cellIndex, isNumber = head.classList.contains('number');
    const down = head.getAttribute('aria-sort') === 'ascending';
    const compare = (a, b) => {
      const left = said(a, column), right = said(b, column);
      if (!isNumber) return (down ? -1 : 1) * left.localeCompare(right, 'en', { numeric: true });
      const x = number(left), y = number(right);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what is no number goes last
      return down ? y - x : x - y;
    };
    for (const other of heads) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  };
  for (const head of heads) {
    head.tabIndex = 0;
    head.title = 'Sort by this column';
    head.addEventListener('click', () => sort(head));
    head.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      sort(head);
    });
  }
}

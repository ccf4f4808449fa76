// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// gap is between columns, and leastLast the least width of a last column that is broken.
const (
	gap       = 2
	leastLast = 20
)

// widths are those of the columns of a table.
func widths(rows [][]string) []int {
	var all []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(all) {
				all = append(all, 0)
			}
			all[i] = max(all[i], utf8.RuneCountInString(Printable(cell)))
		}
	}
	return all
}

func total(widths []int) int {
	sum := gap * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// fitted breaks the last column of a table after commas, so that it is no wider than the terminal; width 0 is for a pipe, where a line
// stays a row. Where the others leave too little room, the last column stays as it is.
func fitted(rows [][]string, width int) [][]string {
	all := widths(rows)
	if width <= 0 || len(all) < 2 || total(all) <= width {
		return rows
	}
	last := len(all) - 1
	room := width - total(append(slices.Clone(all[:last]), 0))
	if room < leastLast {
		return rows
	}
	var narrow [][]string
	for _, row := range rows {
		if len(row) <= last {
			narrow = append(narrow, row)
			continue
		}
		for i, line := range broken(row[last], room) {
			next := make([]string, len(row))
			if i == 0 {
				copy(next, row)
			}
			next[last] = line
			narrow = append(narrow, next)
		}
	}
	return narrow
}

// broken breaks a list after commas.
func broken(list string, room int) (lines []string) {
	line := ""
	for _, part := range strings.SplitAfter(list, ", ") {
		if line != "" && utf8.RuneCountInString(strings.TrimRight(line+part, " ")) > room {
			lines, line = append(lines, line), ""
		}
		line += part
	}
	return append(lines, line)
}

// withoutZeros leaves out the columns from start on that are zero in all rows below the header, where the table is too wide.
func withoutZeros(rows [][]string, start, end, width int) [][]string {
	if width <= 0 || total(widths(rows)) <= width {
		return rows
	}
	rows = slices.Clone(rows)
	for column := end - 1; column >= start; column-- {
		if slices.ContainsFunc(rows[1:], func(row []string) bool { return row[column] != "0" && row[column] != "0%" }) {
			continue
		}
		for i := range rows {
			rows[i] = slices.Delete(slices.Clone(rows[i]), column, column+1)
		}
	}
	return rows
}

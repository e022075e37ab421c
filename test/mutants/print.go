// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
)

// row is a line of the table.
type row struct{ mutants, byUnitTests, bySchedules, survivors int }

func (r *row) add(o outcome) {
	r.mutants++
	switch {
	case o.killer == "":
		r.survivors++
	case o.byWhole:
		r.bySchedules++
	default:
		r.byUnitTests++
	}
}

// print prints the survivors, and a line for each file.
func (c *config) print(out io.Writer, outcomes []outcome, known map[string]string) {
	printf := func(format string, values ...any) { _, _ = fmt.Fprintf(out, format, values...) }
	rows, total := map[string]*row{}, &row{}
	for _, o := range outcomes {
		if rows[o.mutant.File] == nil {
			rows[o.mutant.File] = &row{}
		}
		rows[o.mutant.File].add(o)
		total.add(o)
		switch {
		case o.killer == "":
			printf("survives%s, %s:%d\n\t%s\n\t%s\n", unreached(o), o.mutant.File, o.mutant.Line, o.mutant, known[o.mutant.String()])
		case c.list:
			printf("killed, %s:%d\n\t%s\n\t%s\n", o.mutant.File, o.mutant.Line, o.mutant, o.killer)
		}
	}
	printf("\n%-46s %8s %11s %10s %9s %9s\n", "file", "mutants", "unit tests", "schedules", "survive", "killed")
	printRow := func(name string, r *row) {
		printf("%-46s %8d %11d %10d %9d %7.1f %%\n", name, r.mutants, r.byUnitTests, r.bySchedules, r.survivors,
			100*float64(r.mutants-r.survivors)/float64(max(1, r.mutants)))
	}
	for _, file := range c.files {
		if rows[file] != nil {
			printRow(file, rows[file])
		}
	}
	printRow("total", total)
}

func unreached(o outcome) string {
	if o.reached {
		return ""
	}
	return " and is reached by no test"
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"fmt"
	"image/color"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// soakPanels are the plots of a soak (test/faults/soak): a column of its table against the
// time.
var soakPanels = [][]soakPanel{
	{{title: "VirtualMachines", column: "vms", unit: 1}, {title: "Heap in use, MB", column: "heap", unit: 1e6}},
	{{title: "Goroutines", column: "goroutines", unit: 1}, {title: "Open descriptors", column: "descriptors", unit: 1}},
}

type soakPanel struct {
	title, column string
	unit          float64
}

// soakTable is a table by its columns.
type soakTable struct {
	columns map[string]int
	rows    [][]string
}

// plotSoak draws the table of a soak.
func plotSoak(table, picture string) error {
	t, err := readSoak(table)
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	plots := make([][]*plot.Plot, len(soakPanels))
	for y, line := range soakPanels {
		for _, p := range line {
			drawn, err := p.draw(t)
			if err != nil {
				return fmt.Errorf("%s: %w", p.title, err)
			}
			plots[y] = append(plots[y], drawn)
		}
	}
	return savePNG(plots, picture)
}

func readSoak(path string) (soakTable, error) {
	f, err := os.Open(path)
	if err != nil {
		return soakTable{}, err
	}
	defer func() { _ = f.Close() }()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 2 {
		return soakTable{}, fmt.Errorf("it has %d lines: %w", len(rows), err)
	}
	t := soakTable{columns: map[string]int{}, rows: rows[1:]}
	for n, name := range rows[0] {
		t.columns[name] = n
	}
	return t, nil
}

// number returns a number of a row.
func (t soakTable) number(row []string, column string) float64 {
	value, err := strconv.ParseFloat(row[t.columns[column]], 64)
	if err != nil {
		return 0
	}
	return value
}

// draw draws every replica as a line, and what it needed at rest as dots.
func (p soakPanel) draw(t soakTable) (*plot.Plot, error) {
	drawn := plot.New()
	drawn.Title.Text, drawn.X.Label.Text = p.title, "minutes"
	drawn.Legend.Top = true
	drawn.Add(plotter.NewGrid())
	for n, replica := range []string{"replica-0", "replica-1"} {
		all, rest := p.points(t, replica)
		line, err := plotter.NewLine(all)
		if err != nil {
			return nil, err
		}
		dots, err := plotter.NewScatter(rest)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = fade(plotutil.Color(n)), vg.Points(0.5)
		dots.Color, dots.Shape, dots.Radius = plotutil.Color(n), plotutil.Shape(n), vg.Points(2)
		drawn.Add(line, dots)
		drawn.Legend.Add(replica+", at rest", dots)
	}
	drawn.X.Min, drawn.Y.Min = 0, 0
	drawn.Y.Max *= 1.3 // room for the legend
	return drawn, nil
}

func (p soakPanel) points(t soakTable, replica string) (all, rest plotter.XYs) {
	for _, row := range t.rows {
		if row[t.columns["replica"]] != replica {
			continue
		}
		point := plotter.XY{X: t.number(row, "seconds") / 60, Y: t.number(row, p.column) / p.unit}
		all = append(all, point)
		if row[t.columns["rest"]] == "true" {
			rest = append(rest, point)
		}
	}
	return all, rest
}

// fade returns a color for what is in the background.
func fade(c color.Color) color.Color {
	faded := color.NRGBAModel.Convert(c).(color.NRGBA)
	faded.A = 90
	return faded
}

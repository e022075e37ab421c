// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program plot draws what controllers need in the course of a soak (test/faults/soak):
//
//	plot SAMPLES.csv PICTURE.png
package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"image/color"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// panels are the plots: a column of the table against the time.
var panels = [][]panel{
	{{title: "VirtualMachines", column: "vms", unit: 1}, {title: "Heap in use, MB", column: "heap", unit: 1e6}},
	{{title: "Goroutines", column: "goroutines", unit: 1}, {title: "Open descriptors", column: "descriptors", unit: 1}},
}

type panel struct {
	title, column string
	unit          float64
}

// table is a table by its columns.
type table struct {
	columns map[string]int
	rows    [][]string
}

func main() {
	if err := plotSoak(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func plotSoak(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: plot SAMPLES.csv PICTURE.png")
	}
	t, err := readSoak(args[0])
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	plots := make([][]*plot.Plot, len(panels))
	for y, line := range panels {
		for _, p := range line {
			drawn, err := p.draw(t)
			if err != nil {
				return fmt.Errorf("%s: %w", p.title, err)
			}
			plots[y] = append(plots[y], drawn)
		}
	}
	return savePNG(plots, args[1])
}

func readSoak(path string) (table, error) {
	f, err := os.Open(path)
	if err != nil {
		return table{}, err
	}
	defer func() { _ = f.Close() }()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 2 {
		return table{}, fmt.Errorf("it has %d lines: %w", len(rows), err)
	}
	t := table{columns: map[string]int{}, rows: rows[1:]}
	for n, name := range rows[0] {
		t.columns[name] = n
	}
	return t, nil
}

// number returns a number of a row.
func (t table) number(row []string, column string) float64 {
	value, err := strconv.ParseFloat(row[t.columns[column]], 64)
	if err != nil {
		return 0
	}
	return value
}

// draw draws every replica as a line, and what it needed at rest as dots.
func (p panel) draw(t table) (*plot.Plot, error) {
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

func (p panel) points(t table, replica string) (all, rest plotter.XYs) {
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

// savePNG puts the plots beside and below each other.
func savePNG(plots [][]*plot.Plot, path string) (err error) {
	canvas := vgimg.New(24*vg.Centimeter, 16*vg.Centimeter)
	tiles := draw.Tiles{Rows: len(plots), Cols: len(plots[0]), PadX: vg.Centimeter, PadY: vg.Centimeter, PadTop: vg.Points(4), PadRight: vg.Points(8)}
	places := plot.Align(plots, tiles, draw.New(canvas))
	for y, line := range plots {
		for x, p := range line {
			p.Draw(places[y][x])
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = vgimg.PngCanvas{Canvas: canvas}.WriteTo(f)
	return err
}

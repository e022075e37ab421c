// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program plot draws what VMs cost against their number, from the figures of
// the benchmarks (test/bench/perf), or what controllers need in the course of a soak
// (test/faults/soak):
//
//	plot FIGURES.json PICTURE.png
//	plot SAMPLES.csv PICTURE.png
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// row is the part of a figure that plot uses.
type row struct {
	Suite string    `json:"suite"`
	What  string    `json:"what"`
	VMs   int       `json:"vms"`
	Ours  measured  `json:"ours"`
	Floor *measured `json:"floor"`
}

type measured struct {
	Median float64 `json:"median"`
}

// panel is one plot: a figure against the number of VMs, and its floor.
type panel struct {
	title, y    string
	suite, what string
	floor       string  // its name; empty where there is none
	perVM       bool    // the figure is divided by the number of VMs
	top         float64 // of the y axis, where the figures should not set it
}

var panels = [][]panel{
	{
		{title: "Create to Active, per VM", y: "ms", suite: "fake", what: "create to Active", floor: "noop", perVM: true},
		{title: "A new VM among others, p95", y: "ms", suite: "idle", what: "create to Active, p95, among others", floor: "alone"},
	},
	{
		{title: "Resident memory", y: "MB", suite: "restart", what: "resident memory", floor: "bare cache"},
		{title: "CPU at rest", y: "% of one core", suite: "idle", what: "CPU at rest", top: 1},
	},
}

func main() {
	if err := runPlot(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func runPlot(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: plot FIGURES.json|SAMPLES.csv PICTURE.png")
	}
	if filepath.Ext(args[0]) == ".csv" {
		return plotSoak(args[0], args[1])
	}
	content, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var report struct {
		Figures []row `json:"figures"`
	}
	if err := json.Unmarshal(content, &report); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	plots := make([][]*plot.Plot, len(panels))
	for y, line := range panels {
		for _, p := range line {
			drawn, err := p.drawPanel(report.Figures)
			if err != nil {
				return fmt.Errorf("%s: %w", p.title, err)
			}
			plots[y] = append(plots[y], drawn)
		}
	}
	return savePNG(plots, args[1])
}

// drawPanel draws one panel, from 0 on.
func (p panel) drawPanel(rows []row) (*plot.Plot, error) {
	ours, floor := p.dataPoints(rows)
	if len(ours) < 2 {
		return nil, errors.New("there are figures for fewer than two numbers of VMs")
	}
	drawn := plot.New()
	drawn.Title.Text, drawn.X.Label.Text, drawn.Y.Label.Text = p.title, "VMs", p.y
	drawn.Legend.Top, drawn.Legend.Left = true, true
	lines := []any{"Drover", ours}
	if p.floor != "" {
		lines = append(lines, p.floor, floor)
	}
	drawn.Add(plotter.NewGrid())
	if err := plotutil.AddLinePoints(drawn, lines...); err != nil {
		return nil, err
	}
	drawn.X.Min, drawn.Y.Min = 0, 0
	drawn.Y.Max = max(1.3*drawn.Y.Max, p.top) // room for the legend
	return drawn, nil
}

func (p panel) dataPoints(rows []row) (ours, floor plotter.XYs) {
	for _, r := range rows {
		if r.Suite != p.suite || r.What != p.what || r.VMs < 100 && p.perVM {
			continue
		}
		over := 1.0
		if p.perVM {
			over = float64(r.VMs)
		}
		ours = append(ours, plotter.XY{X: float64(r.VMs), Y: r.Ours.Median / over})
		if r.Floor != nil {
			floor = append(floor, plotter.XY{X: float64(r.VMs), Y: r.Floor.Median / over})
		}
	}
	byX := func(a, b plotter.XY) int { return int(a.X - b.X) }
	slices.SortFunc(ours, byX)
	slices.SortFunc(floor, byX)
	return ours, floor
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

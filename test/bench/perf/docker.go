// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"cloudnative.tw/drover/test/bench"
)

// runDockerSuite measures how long containers take, beside the Docker API alone:
// one, one among many, and many.
func (b *benchmark) runDockerSuite(ctx context.Context) error {
	w, err := b.sharedEnvironment(ctx)
	if err != nil {
		return err
	}
	e, err := openDockerFloor()
	if err != nil {
		return err
	}
	e.removeLeftovers(ctx)
	defer e.removeLeftovers(ctx)
	p, err := w.startDrover(ctx, nil, "--vm-driver=docker")
	if err != nil {
		return err
	}
	return p.StopWith(b.measureDocker(ctx, &dockerSuite{w, e, p}))
}

// dockerSuite is what takes turns.
type dockerSuite struct {
	*environment
	engine     *dockerFloor
	controller *bench.Controller
}

func (b *benchmark) measureDocker(ctx context.Context, d *dockerSuite) error {
	alone, floor, err := d.measureSingles(ctx)
	if err != nil {
		return err
	}
	active, _ := b.reportTurns(alone, floor, [2]string{activeText, "delete"}, "create and start", 1)
	active.RatioAtMost(1.25)
	if err := b.measureMany(ctx, d); err != nil {
		return err
	}
	if _, err := d.idle.CreateMany(ctx, b.DockerVMs); err != nil {
		return err
	}
	among, floor, err := d.measureSingles(ctx)
	if err != nil {
		return err
	}
	b.reportTurns(among, floor, [2]string{activeText + ", among others", "delete, among others"}, "create and start", b.DockerVMs)
	if row := b.reportAmong("docker", alone, among, b.DockerVMs); b.DockerVMs == 100 {
		row.RatioAtMost(1.2)
	}
	_, err = d.idle.DeleteMany(ctx, b.DockerVMs)
	return err
}

// reportTurns reports how long VMs took to Active and until they were gone, beside containers.
func (b *benchmark) reportTurns(ours, floor []round, names [2]string, beside string, vms int) (active, gone *bench.Row) {
	row := func(what, beside string, of func(round) float64) *bench.Row {
		return b.report.AddRow("docker", what, vms, "ms", bench.Figures(ours, of)...).CompareWith(beside, bench.Figures(floor, of)...)
	}
	return row(names[0], beside, activeMS), row(names[1], "stop and remove", goneMS)
}

// measureSingles makes one VM, and one container, at a time.
func (d *dockerSuite) measureSingles(ctx context.Context) (ours, floor []round, err error) {
	if _, err := d.newVM(ctx, "warm"); err != nil {
		return nil, nil, err
	}
	err = bench.TakeTurns(d.benchmark.Samples, func(turn int) error {
		if err := d.AwaitQuiet(ctx, d.controller); err != nil {
			return err
		}
		r, err := d.newVM(ctx, fmt.Sprintf("one-%d", turn))
		ours = append(ours, r)
		return err
	}, func(int) error { return d.measureContainers(ctx, 1, &floor) })
	return ours, floor, err
}

// measureContainers creates and deletes containers through the Docker API.
func (d *dockerSuite) measureContainers(ctx context.Context, count int, rounds *[]round) (err error) {
	if err := d.AwaitQuiet(ctx, d.controller); err != nil {
		return err
	}
	var r round
	var ids []string
	if r.active, ids, err = d.engine.createContainers(ctx, count); err != nil {
		return err
	}
	if err := d.AwaitQuiet(ctx, d.controller); err != nil {
		return err
	}
	r.gone, err = d.engine.deleteContainers(ctx, ids)
	*rounds = append(*rounds, r)
	return err
}

// measureMany makes many at a time.
func (b *benchmark) measureMany(ctx context.Context, d *dockerSuite) error {
	var ours, floor []round
	n := b.DockerVMs
	err := bench.TakeTurns(b.DockerPairs, func(int) error {
		r, err := d.runRound(ctx, d.controller, n)
		ours = append(ours, r)
		return err
	}, func(int) error { return d.measureContainers(ctx, n, &floor) })
	if err != nil {
		return err
	}
	if active, gone := b.reportTurns(ours, floor, [2]string{activeText, goneText}, "engine", n); n == 100 {
		active.RatioAtMost(1.15)
		gone.RatioAtMost(1.2)
	}
	return nil
}

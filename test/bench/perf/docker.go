// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	return p.stopWith(b.measureDocker(ctx, w, e, p))
}

func (b *benchmark) measureDocker(ctx context.Context, w *environment, e *dockerFloor, p *process) error {
	alone, err := b.measureSingles(ctx, w, e, p)
	if err != nil {
		return err
	}
	b.reportOne(alone, "create to Active", "delete", 1).ratioAtMost("docker-1", 1.25)
	if err := b.measureMany(ctx, w, e, p); err != nil {
		return err
	}
	among, err := b.measureAmongIdle(ctx, w, e, p)
	if err != nil {
		return err
	}
	b.reportOne(among, "create to Active, among others", "delete, among others", b.DockerVMs)
	b.reportAmong("docker", alone.active, among.active, b.DockerVMs, "among-docker", 100)
	b.report.addRow("docker", "p95 of create and start by the API, among others", b.DockerVMs, "ms", bench.Percentile(among.engineActive, 95)).
		compareWith("alone", bench.Percentile(alone.engineActive, 95))
	return nil
}

// singleTimes are single VMs and single containers, in ms.
type singleTimes struct{ active, gone, engineActive, engineGone []float64 }

// measureSingles makes one VM, and one container, at a time.
func (b *benchmark) measureSingles(ctx context.Context, w *environment, e *dockerFloor, p *process) (o singleTimes, err error) {
	if _, err := w.newVM(ctx, "warm"); err != nil {
		return o, err
	}
	err = takeTurns(b.Samples, func(turn int) error {
		if err := w.waitUntilQuiet(ctx, p); err != nil {
			return err
		}
		one, err := w.newVM(ctx, fmt.Sprintf("one-%d", turn))
		o.active, o.gone = append(o.active, toMilliseconds(one.active)), append(o.gone, toMilliseconds(one.gone))
		return err
	}, func(int) error { return o.measureContainers(ctx, w, e, p, 1) })
	return o, err
}

// measureContainers creates and deletes containers through the Docker API.
func (o *singleTimes) measureContainers(ctx context.Context, w *environment, e *dockerFloor, p *process, count int) error {
	if err := w.waitUntilQuiet(ctx, p); err != nil {
		return err
	}
	active, ids, err := e.createContainers(ctx, count)
	if err != nil {
		return err
	}
	if err := w.waitUntilQuiet(ctx, p); err != nil {
		return err
	}
	gone, err := e.deleteContainers(ctx, ids)
	o.engineActive, o.engineGone = append(o.engineActive, toMilliseconds(active)), append(o.engineGone, toMilliseconds(gone))
	return err
}

func (b *benchmark) reportOne(o singleTimes, activeText, goneText string, vms int) *row {
	b.report.addRow("docker", goneText, vms, "ms", o.gone...).compareWith("stop and remove", o.engineGone...)
	return b.report.addRow("docker", activeText, vms, "ms", o.active...).compareWith("create and start", o.engineActive...)
}

// newVM makes one more VM and deletes it.
func (w *environment) newVM(ctx context.Context, name string) (r round, err error) {
	r.active, err = w.waitForAll(ctx, 1, isActive, func(ctx context.Context) error {
		return bench.CreateVM(ctx, w.vms, name)
	})
	if err != nil {
		return r, err
	}
	if err := bench.AwaitQuiet(ctx, w.cluster.PID()); err != nil {
		return r, err
	}
	r.gone, err = w.waitForAll(ctx, 1, isGone, func(ctx context.Context) error {
		return w.vms.Delete(ctx, name, metav1.DeleteOptions{})
	})
	return r, err
}

// measureMany makes many at a time.
func (b *benchmark) measureMany(ctx context.Context, w *environment, e *dockerFloor, p *process) error {
	var o singleTimes
	n := b.DockerVMs
	err := takeTurns(b.DockerPairs, func(int) error {
		r, err := w.runRound(ctx, p, n, nil)
		if err == nil {
			o.active, o.gone = append(o.active, toMilliseconds(r[0].active)), append(o.gone, toMilliseconds(r[0].gone))
		}
		return err
	}, func(int) error { return o.measureContainers(ctx, w, e, p, n) })
	if err != nil {
		return err
	}
	active := b.report.addRow("docker", activeText, n, "ms", o.active...).compareWith("engine", o.engineActive...)
	gone := b.report.addRow("docker", "delete all", n, "ms", o.gone...).compareWith("stop and remove", o.engineGone...)
	if n == 100 {
		active.ratioAtMost("docker-100", 1.15)
		gone.ratioAtMost("delete-docker", 1.2)
	}
	return nil
}

// measureAmongIdle is dockerOnes among many idle ones.
func (b *benchmark) measureAmongIdle(ctx context.Context, w *environment, e *dockerFloor, p *process) (o singleTimes, err error) {
	idle := *w
	idle.vms = w.vmsIn(idleNamespace)
	if _, err := idle.createVMs(ctx, b.DockerVMs); err != nil {
		return o, err
	}
	if o, err = b.measureSingles(ctx, w, e, p); err != nil {
		return o, err
	}
	_, err = idle.deleteVMs(ctx, b.DockerVMs)
	return o, err
}

// reportAmong compares a new VM among others with one alone.
func (b *benchmark) reportAmong(suite string, alone, among []float64, vms int, aim string, aimVMs int) {
	b.report.addRow(suite, "create to Active, median, among others", vms, "ms", bench.Median(among)).
		compareWith("alone", bench.Median(alone))
	row := b.report.addRow(suite, "create to Active, p95, among others", vms, "ms", bench.Percentile(among, 95)).
		compareWith("alone", bench.Percentile(alone, 95))
	if vms == aimVMs {
		row.ratioAtMost(aim, 1.2)
	}
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/bench"
)

// dockerSuite measures how long containers take, beside the Docker API alone:
// one, one among many, and many.
func (b *benchmark) dockerSuite(ctx context.Context) error {
	w, err := b.world(ctx)
	if err != nil {
		return err
	}
	e, err := openEngine()
	if err != nil {
		return err
	}
	e.clear(ctx)
	defer e.clear(ctx)
	p, err := w.drover(ctx, nil, "--vm-driver=docker")
	if err != nil {
		return err
	}
	return p.stop(b.dockerWith(ctx, w, e, p))
}

func (b *benchmark) dockerWith(ctx context.Context, w *world, e *engine, p *process) error {
	alone, err := b.dockerOnes(ctx, w, e, p)
	if err != nil {
		return err
	}
	b.reportOne(alone, "create to Active", "delete", 1).ratioAtMost("docker-1", 1.25)
	if err := b.dockerMany(ctx, w, e, p); err != nil {
		return err
	}
	among, err := b.dockerAmong(ctx, w, e, p)
	if err != nil {
		return err
	}
	b.reportOne(among, "create to Active, among others", "delete, among others", b.DockerVMs)
	b.reportAmong("docker", alone.active, among.active, b.DockerVMs, "among-docker", 100)
	b.report.add("docker", "p95 of create and start by the API, among others", b.DockerVMs, "ms", bench.Percentile(among.engineActive, 95)).
		beside("alone", bench.Percentile(alone.engineActive, 95))
	return nil
}

// ones are single VMs and single containers, in ms.
type ones struct{ active, gone, engineActive, engineGone []float64 }

// dockerOnes makes one VM, and one container, at a time.
func (b *benchmark) dockerOnes(ctx context.Context, w *world, e *engine, p *process) (o ones, err error) {
	if _, err := w.newVM(ctx, "warm"); err != nil {
		return o, err
	}
	err = takeTurns(b.Samples, func(turn int) error {
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		one, err := w.newVM(ctx, fmt.Sprintf("one-%d", turn))
		o.active, o.gone = append(o.active, milliseconds(one.active)), append(o.gone, milliseconds(one.gone))
		return err
	}, func(int) error {
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		active, ids, err := e.create(ctx, 1)
		if err != nil {
			return err
		}
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		gone, err := e.delete(ctx, ids)
		o.engineActive, o.engineGone = append(o.engineActive, milliseconds(active)), append(o.engineGone, milliseconds(gone))
		return err
	})
	return o, err
}

func (b *benchmark) reportOne(o ones, activeText, goneText string, vms int) *row {
	b.report.add("docker", goneText, vms, "ms", o.gone...).beside("stop and remove", o.engineGone...)
	return b.report.add("docker", activeText, vms, "ms", o.active...).beside("create and start", o.engineActive...)
}

// newVM makes one more VM and deletes it.
func (w *world) newVM(ctx context.Context, name string) (r round, err error) {
	r.active, err = w.until(ctx, 1, isActive, func(ctx context.Context) error {
		return bench.CreateVM(ctx, w.vms, name)
	})
	if err != nil {
		return r, err
	}
	if err := bench.AwaitQuiet(ctx, w.cluster.PID()); err != nil {
		return r, err
	}
	r.gone, err = w.until(ctx, 1, isGone, func(ctx context.Context) error {
		return w.vms.Delete(ctx, name, metav1.DeleteOptions{})
	})
	return r, err
}

// dockerMany makes many at a time.
func (b *benchmark) dockerMany(ctx context.Context, w *world, e *engine, p *process) error {
	var o ones
	n := b.DockerVMs
	err := takeTurns(b.DockerPairs, func(int) error {
		r, err := w.round(ctx, p, n, nil)
		if err == nil {
			o.active, o.gone = append(o.active, milliseconds(r[0].active)), append(o.gone, milliseconds(r[0].gone))
		}
		return err
	}, func(int) error {
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		active, ids, err := e.create(ctx, n)
		if err != nil {
			return err
		}
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		gone, err := e.delete(ctx, ids)
		o.engineActive, o.engineGone = append(o.engineActive, milliseconds(active)), append(o.engineGone, milliseconds(gone))
		return err
	})
	if err != nil {
		return err
	}
	active := b.report.add("docker", activeText, n, "ms", o.active...).beside("engine", o.engineActive...)
	gone := b.report.add("docker", "delete all", n, "ms", o.gone...).beside("stop and remove", o.engineGone...)
	if n == 100 {
		active.ratioAtMost("docker-100", 1.15)
		gone.ratioAtMost("delete-docker", 1.2)
	}
	return nil
}

// dockerAmong is dockerOnes among many idle ones.
func (b *benchmark) dockerAmong(ctx context.Context, w *world, e *engine, p *process) (o ones, err error) {
	idle := *w
	idle.vms = w.in(idleNamespace)
	if _, err := idle.create(ctx, b.DockerVMs); err != nil {
		return o, err
	}
	if o, err = b.dockerOnes(ctx, w, e, p); err != nil {
		return o, err
	}
	_, err = idle.delete(ctx, b.DockerVMs)
	return o, err
}

// reportAmong compares a new VM among others with one alone.
func (b *benchmark) reportAmong(suite string, alone, among []float64, vms int, aim string, aimVMs int) {
	b.report.add(suite, "create to Active, median, among others", vms, "ms", bench.Median(among)).
		beside("alone", bench.Median(alone))
	row := b.report.add(suite, "create to Active, p95, among others", vms, "ms", bench.Percentile(among, 95)).
		beside("alone", bench.Percentile(alone, 95))
	if vms == aimVMs {
		row.ratioAtMost(aim, 1.2)
	}
}

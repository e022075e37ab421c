// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"maps"
	"strings"

	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// Pair is two engines of one controller. Workloads that move a VirtualMachine create servers
// first on Engine and then on Second.
type Pair struct {
	lab.Engine
	Second lab.Engine
}

// Name implements lab.Engine.
func (p Pair) Name() string { return p.Engine.Name() + " and " + p.Second.Name() }

// Runs implements lab.Engine.
func (p Pair) Runs(string) bool { return true }

// Args implements lab.Engine.
func (p Pair) Args(w *lab.World) []string {
	const flag = "--vm-driver="
	var drivers, args []string
	for _, arg := range append(p.Engine.Args(w), p.Second.Args(w)...) {
		if driver, ok := strings.CutPrefix(arg, flag); ok {
			drivers = append(drivers, driver)
		} else {
			args = append(args, arg)
		}
	}
	return append(args, flag+strings.Join(drivers, ","))
}

// Variables implements lab.Engine.
func (p Pair) Variables(w *lab.World) []string {
	return append(p.Engine.Variables(w), p.Second.Variables(w)...)
}

// Prepare implements lab.Engine.
func (p Pair) Prepare(ctx context.Context, w *lab.World) error {
	return errors.Join(p.Engine.Prepare(ctx, w), p.Second.Prepare(ctx, w))
}

// CleanUp implements lab.Engine.
func (p Pair) CleanUp(ctx context.Context, w *lab.World) error {
	return errors.Join(p.Engine.CleanUp(ctx, w), p.Second.CleanUp(ctx, w))
}

// Inspect implements lab.Engine. Effects are the sums of both engines.
func (p Pair) Inspect(ctx context.Context, w *lab.World, processes []rules.Process) (lab.Observed, error) {
	all, err := p.Engine.Inspect(ctx, w, processes)
	second, secondErr := p.Second.Inspect(ctx, w, processes)
	all.Servers, all.Violations = append(all.Servers, second.Servers...), append(all.Violations, second.Violations...)
	all.Text += second.Text
	maps.Copy(all.Created, second.Created)
	all.Effects = maps.Clone(all.Effects)
	for name, e := range second.Effects {
		sum := all.Effects[name]
		sum.Creates, sum.Deletes, sum.Releases, sum.Runs = sum.Creates+e.Creates, sum.Deletes+e.Deletes, sum.Releases+e.Releases, sum.Runs+e.Runs
		all.Effects[name] = sum
	}
	return all, errors.Join(err, secondErr)
}

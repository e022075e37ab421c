// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/users"
)

// longRest is how long nothing may be written once all requests are complete (rules.QuietAtRest), and gateRest the
// same in the gate.
const longRest, gateRest = time.Minute, 15 * time.Second

// restingActions has the actions of the VirtualMachines by their names.
var restingActions = map[string]api.Action{"vm-1": api.ActionActive, "vm-2": api.ActionStopped, "vm-3": api.ActionPaused}

// RestKind returns a kind without a fault: it checks that a leader and a standby write nothing at
// rest, with each engine, for longer than other kinds do. The gate runs only the first engine.
func RestKind(name string, engines []lab.Engine) lab.Kind {
	explore := func(ctx context.Context, l *lab.Lab, engines []lab.Engine, long time.Duration) (all lab.Result, err error) {
		begin := time.Now()
		var mu sync.Mutex
		err = lab.ForEach(ctx, len(engines), engines, func(ctx context.Context, e lab.Engine) error {
			broken, err := checkEngineRest(ctx, l, e, long)
			mu.Lock()
			defer mu.Unlock()
			all.Points++
			all.AddRun(broken)
			return err
		})
		all.Took = time.Since(begin)
		return all, err
	}
	return lab.Kind{
		Name: name, Sizes: []lab.Size{lab.SizeShort, lab.SizeDefault, lab.SizeFull},
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			if size == lab.SizeShort {
				return explore(ctx, l, engines[:1], gateRest)
			}
			return explore(ctx, l, engines, longRest)
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			return explore(ctx, l, slices.DeleteFunc(slices.Clone(engines), func(e lab.Engine) bool { return e.Name() != name }), longRest)
		},
	}
}

// checkEngineRest checks that nothing is written for an engine's VirtualMachines at rest.
func checkEngineRest(ctx context.Context, l *lab.Lab, e lab.Engine, long time.Duration) (broken []lab.Violation, err error) {
	w, err := l.NewWorld(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.CleanUp(context.WithoutCancel(ctx), w), w.Close()) }()
	if err := e.Prepare(ctx, w); err != nil {
		return nil, err
	}
	r, err := w.StartReplicas(lab.Plan{Engine: e, Recovery: lab.ByStandby})
	if err != nil {
		return nil, err
	}
	defer r.Stop()
	if err = bringToRest(ctx, w, e); err == nil {
		broken, err = checkLongRest(ctx, w, r, long)
	}
	if v := lab.ViolationOf(err); v != nil {
		broken, err = append(broken, *v), nil
	}
	for n := range broken {
		broken[n].Case, broken[n].History = e.Name(), r.Decisions()
	}
	return broken, err
}

// bringToRest creates the VirtualMachines, and waits until nothing more is written.
func bringToRest(ctx context.Context, w *lab.World, e lab.Engine) error {
	for name := range restingActions {
		if err := w.CreateVM(ctx, e.NewVM(name).Obj()); err != nil {
			return err
		}
	}
	for name, action := range restingActions {
		if err := w.WaitVM(ctx, name, users.CheckApplied); err != nil {
			return err
		}
		if err := w.UpdateVM(ctx, name, func(vm *api.VirtualMachine) { vm.Spec.Action = action }); err != nil {
			return err
		}
	}
	for name := range restingActions {
		if err := w.WaitVM(ctx, name, users.CheckApplied); err != nil {
			return err
		}
	}
	return w.WaitRest(ctx, stableTime)
}

// checkLongRest checks the world before and after a long rest, in which nothing may change.
func checkLongRest(ctx context.Context, w *lab.World, r *lab.Replicas, long time.Duration) ([]lab.Violation, error) {
	before, broken, err := w.Judge(ctx, r)
	if err != nil || len(broken) > 0 {
		return broken, err
	}
	if err := w.WaitRest(ctx, long); err != nil {
		return nil, err
	}
	after, later, err := w.Judge(ctx, r)
	for _, text := range after.Differences(before) {
		later = append(later, lab.Violation{Rule: rules.Converges, Text: fmt.Sprintf("after %s at rest %s", long, text)})
	}
	return later, err
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/rules"
)

// State has the results that two runs of one workload must share.
type State struct {
	// VMs are the statuses by name, without what differs from run to run.
	VMs map[string]string
	// Servers are the servers' states and settings.
	Servers []string
	Effects map[string]Effects
	// Unreported count the runs that no status has named. Whether there are some depends on the moment of a fault.
	Unreported map[string]int
}

// Differences returns how a state differs from that of a run without faults (O7).
func (s State) Differences(want State) []string {
	all := differences("%s is %s, want %s", s.VMs, want.VMs)
	if got, want := strings.Join(s.Servers, "\n"), strings.Join(want.Servers, "\n"); got != want {
		all = append(all, fmt.Sprintf("the servers are %s, want %s", got, want))
	}
	return append(all, differences("%s had %+v, want %+v", s.Effects, want.Effects)...)
}

// differences formats what differs, by its name in either map.
func differences[V comparable](format string, got, want map[string]V) (all []string) {
	names := slices.AppendSeq(slices.Collect(maps.Keys(got)), maps.Keys(want))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if got[name] != want[name] {
			all = append(all, fmt.Sprintf(format, name, got[name], want[name]))
		}
	}
	return all
}

// Evidence is the evidence by which a world is judged, besides its observations.
type Evidence struct {
	Engine    Engine
	Processes []rules.Process
	// Output is the output of the processes.
	Output string
	// Decisions are the last of them, in sentences.
	Decisions string
	// Failures are why processes have ended that no fault had ended.
	Failures []string
}

// Judge returns the state of a world at rest, and the rules that were broken.
func (w *World) Judge(ctx context.Context, r *Replicas) (State, []Violation, error) {
	state, broken, err := w.JudgeEvidence(ctx, Evidence{r.plan.Engine, r.Processes(), r.Output(), r.Decisions(), r.Failures()})
	return state, append(r.BrokenAtCrashes(), broken...), err
}

// JudgeEvidence does the same for processes of another kind.
func (w *World) JudgeEvidence(ctx context.Context, e Evidence) (State, []Violation, error) {
	seen, err := e.Engine.Inspect(ctx, w, e.Processes)
	if err != nil {
		return State{}, nil, err
	}
	w.mu.Lock()
	now, versions := maps.Clone(w.now), slices.Clone(w.versions)
	w.mu.Unlock()
	all := slices.Concat(seen.Violations, rules.CheckServers(slices.Collect(maps.Values(now)), seen.Servers), rules.CheckClaims(versions, seen.Created))
	for _, text := range e.Failures {
		all = append(all, rules.Broken(rules.O10, "a process ended by itself: %s", text))
	}
	secrets, err := w.checkSecrets(ctx, e, seen, versions)
	if err != nil {
		return State{}, nil, err
	}
	if all = append(all, secrets...); len(all) == 0 { // who waits until all is well need not replay each time
		all, err = w.replayDecisions()
	}
	return stateOf(now, seen), all, err
}

// checkProtected reads the API live: a server without a VirtualMachine, or whose
// VirtualMachine could be deleted without a trace, would be lost with the controller.
func (w *World) checkProtected(ctx context.Context, servers []Server) ([]Violation, error) {
	list, err := w.virtualMachines().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	protected := map[types.UID]bool{}
	for n := range list.Items {
		protected[list.Items[n].UID] = slices.Contains(list.Items[n].Finalizers, api.FinalizerServer)
	}
	var all []Violation
	for _, s := range servers {
		if !s.Released && !protected[s.UID] {
			all = append(all, rules.Broken(rules.O2, "after a crash the server of %s has no VirtualMachine with a finalizer", s.Name))
		}
	}
	return all, nil
}

// names returns the names of all VirtualMachines that ever existed, by UID.
func (w *World) names() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := map[string]string{}
	for _, vm := range w.versions {
		names[string(vm.UID)] = vm.Name
	}
	return names
}

func stateOf(now map[string]*api.VirtualMachine, seen Observed) State {
	s := State{VMs: map[string]string{}, Effects: seen.Effects, Unreported: seen.Unreported}
	for name, vm := range now {
		s.VMs[name] = comparableStatus(vm)
	}
	for _, server := range seen.Servers {
		s.Servers = append(s.Servers, fmt.Sprintf("%s %s released=%v %s", server.Name, server.State, server.Released, server.Config))
	}
	slices.Sort(s.Servers)
	return s
}

// comparableStatus is a status without what differs from run to run.
func comparableStatus(vm *api.VirtualMachine) string {
	s := vm.Status
	var text strings.Builder
	fmt.Fprintf(&text, "phase=%s reason=%s generation=%d/%d restarts=%d pending=%v restarted=%v server=%v finalizers=%v",
		s.Phase, s.Reason, s.ObservedGeneration, vm.Generation, s.RestartCount, s.PendingFields, s.RestartedAt != nil, s.Server != nil, vm.Finalizers)
	for _, c := range s.Conditions {
		if c.Type == api.ConditionConfined {
			continue // a crash right after QEMU was started leaves unknown how, and the reason says so
		}
		fmt.Fprintf(&text, " %s=%s/%s", c.Type, c.Status, c.Reason)
	}
	if s.Operation != nil {
		fmt.Fprintf(&text, " operation=%s", s.Operation.Type)
	}
	return text.String()
}

// Settle judges again and again until no rule is broken, since what has to be done may take a while,
// such as an orphan's grace period. It returns what is broken at last.
func Settle(ctx context.Context, judge func() ([]Violation, error)) (broken []Violation, err error) {
	_ = assert.Poll(ctx, "no rule is broken", func() error {
		broken, err = judge()
		if err == nil && len(broken) > 0 {
			return errors.New(broken[0].String())
		}
		return nil
	})
	return broken, err
}

// atRest is the state that WaitRest waits for.
const atRest = "nothing is written at rest"

// WaitRest waits until nothing is written for a while (O8), but for those to a resource that is not
// looked at, if it is named. What is only late, such as an event that client-go sends again, may
// still be written: schedules, whose clock is not the host's, allow no write at all.
func (w *World) WaitRest(ctx context.Context, during time.Duration, except ...string) error {
	writes := func() []string {
		return slices.DeleteFunc(w.Writes(), func(write string) bool { return slices.Contains(except, path.Base(write)) })
	}
	err := assert.Poll(ctx, atRest, func() error {
		before := len(writes())
		select {
		case <-time.After(during):
		case <-ctx.Done():
		}
		if after := writes(); len(after) > before {
			return fmt.Errorf("in %s there were the writes %v", during, after[before:])
		}
		return ctx.Err()
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &NotConvergedError{atRest, err}
}

// ViolationOf returns the violation that an error of a step is, if it is one.
func ViolationOf(err error) *Violation {
	late, ok := errors.AsType[*NotConvergedError](err)
	switch {
	case !ok:
		return nil
	case strings.HasSuffix(late.What, "is gone"):
		return &Violation{Rule: rules.O4, Text: late.Error()}
	case late.What == atRest:
		return &Violation{Rule: rules.O8, Text: late.Error()}
	}
	return &Violation{Rule: rules.O10, Text: late.Error()}
}

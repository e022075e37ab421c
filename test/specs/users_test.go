// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/tier"
)

// TestUsers runs random sequences of users' actions on a fake engine, and compares the
// outcome with a model. rapid shortens failing sequences.
func TestUsers(t *testing.T) {
	t.Parallel()
	began := time.Now()
	u := &users{suite: newSuite(t, fakeEngine())}
	rapid.Check(t, u.runSequence)
	seen, violations := u.states.report()
	t.Logf("users: sequences %d, actions %v, states %d, violations %d; %s", u.sequences, u.counts, seen, len(violations), time.Since(began).Round(time.Second))
	for _, wrong := range violations {
		t.Error(wrong)
	}
}

// setRapidFlags sets flags of rapid, unless the user has set them. It must return before the
// first test begins, since all tests read them.
func setRapidFlags() error {
	values := map[string]string{"rapid.nofailfile": "true", "rapid.checks": "6", "rapid.seed": "1"}
	if tier.IsFull() {
		values["rapid.checks"] = "100"
		delete(values, "rapid.seed")
	}
	for name, value := range values {
		f := flag.Lookup(name)
		if f.Value.String() != f.DefValue {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			return fmt.Errorf("flag %s: %w", name, err)
		}
	}
	return nil
}

type users struct {
	*suite
	sequences int
}

// model is the state of a VirtualMachine that users expect.
type model struct {
	name string
	// spec is the desired spec, or nil if the VirtualMachine does not exist.
	spec       *api.VirtualMachineSpec
	generation int64
	uid        string
	// run is the server's run at the last rest, or empty if the server was off. mayRestart is set once an
	// action may have ended the run, and mustRestart once an action has.
	run                     string
	mayRestart, mustRestart bool
}

// runSequence runs random actions of two users on two VirtualMachines.
func (u *users) runSequence(t *rapid.T) {
	u.sequences++
	models := []*model{{name: fmt.Sprintf("a-%d", u.next.Add(1))}, {name: fmt.Sprintf("b-%d", u.next.Add(1))}}
	defer u.clean(models)
	pick := rapid.SampledFrom(models)
	on := func(what string, do func(t *rapid.T, m *model)) func(*rapid.T) {
		return func(t *rapid.T) {
			m := pick.Draw(t, "vm")
			if m.spec == nil { // no other action is possible
				u.count("create")
				u.create(t, m)
				return
			}
			u.count(what)
			do(t, m)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"power":    on("power", u.changePower),
		"resize":   on("resize", u.resize),
		"image":    on("image", u.changeImage),
		"ports":    on("ports", u.changePorts),
		"restart":  on("restart", u.restart),
		"nonsense": on("nonsense", u.tryNonsense),
		"delete":   on("delete", u.delete),
		"replace":  on("replace", u.recreate),
		"rest":     on("rest", u.rest),
	})
	for _, m := range models {
		if m.spec != nil {
			u.rest(t, m)
		}
	}
}

func (u *users) api() framework.VMs { return environment.VMsIn(u.ns) }

var actions = rapid.SampledFrom([]api.Action{api.ActionActive, api.ActionStopped, api.ActionPaused})

func (u *users) create(t *rapid.T, m *model) {
	vm := framework.NewVM(m.name).Namespace(u.ns).Driver("fake").Action(actions.Draw(t, "action")).Image("image:1").
		RestartPolicy(rapid.SampledFrom([]api.RestartPolicy{api.RestartAlways, api.RestartOnFailure, api.RestartNever}).Draw(t, "policy")).Obj()
	made, err := u.api().Create(context.Background(), vm, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	*m = model{name: m.name, spec: &made.Spec, generation: made.Generation, uid: string(made.UID), mayRestart: true}
}

// edit changes the spec of a VirtualMachine, and retries at a conflict.
func (u *users) edit(t *rapid.T, m *model, change func(*api.VirtualMachineSpec)) {
	vm, err := u.api().Change(context.Background(), m.name, func(vm *api.VirtualMachine) { change(&vm.Spec) })
	if err != nil {
		t.Fatalf("edit of %s: %v", m.name, err)
	}
	m.spec, m.generation = &vm.Spec, vm.Generation
}

func (u *users) changePower(t *rapid.T, m *model) {
	to := actions.Draw(t, "action")
	if to == api.ActionStopped || m.spec.Action == api.ActionStopped {
		m.mayRestart, m.mustRestart = true, false
	}
	u.edit(t, m, func(s *api.VirtualMachineSpec) { s.Action = to })
}

func (u *users) resize(t *rapid.T, m *model) {
	cpu := rapid.SampledFrom([]string{"1", "2", "500m"}).Draw(t, "cpu")
	u.edit(t, m, func(s *api.VirtualMachineSpec) {
		s.Resource = maps.Clone(s.Resource)
		s.Resource[api.ResourceCPU] = resource.MustParse(cpu)
	})
}

func (u *users) changeImage(t *rapid.T, m *model) {
	source := rapid.SampledFrom([]string{"image:1", "image:2"}).Draw(t, "image")
	u.edit(t, m, func(s *api.VirtualMachineSpec) { s.Image = &api.Image{Source: source} })
}

func (u *users) changePorts(t *rapid.T, m *model) {
	ports := rapid.SampledFrom([][]api.Port{nil, {{Name: "http", Protocol: api.ProtocolTCP, Port: 80, HostPort: 8080}}}).Draw(t, "ports")
	u.edit(t, m, func(s *api.VirtualMachineSpec) { s.Ports = ports })
}

func (u *users) restart(t *rapid.T, m *model) {
	at := metav1.NewTime(time.Unix(1e9+u.next.Add(1), 0))
	m.mustRestart = m.mustRestart || m.run != "" && !m.mayRestart && m.spec.Action == api.ActionActive
	m.mayRestart = true
	u.edit(t, m, func(s *api.VirtualMachineSpec) { s.RestartedAt = &at })
}

// tryNonsense sends an invalid value, which the API must refuse.
func (u *users) tryNonsense(t *rapid.T, m *model) {
	f := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(u.fields), func(f Field) bool { return len(f.Invalid) == 0 })).Draw(t, "field")
	value := f.Invalid[rapid.IntRange(0, len(f.Invalid)-1).Draw(t, "value")]
	spec, err := u.set(u.base, f.Path, value)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.putObject(m.name, spec); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		t.Fatalf("%s: %.100v: %v", f.Path, value, err)
	}
}

func (u *users) delete(t *rapid.T, m *model) {
	if err := u.vms.Delete(context.Background(), m.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := u.waitGone(m); err != nil {
		t.Fatal(err)
	}
	if environment.ReadFakeServer(u.t, types.UID(m.uid)) != nil {
		u.count("orphans")
		if err := u.waitSwept(m); err != nil {
			t.Fatal(err)
		}
	}
	m.spec, m.run = nil, ""
}

// waitGone waits until a VirtualMachine is gone. It reads from the API, because the watch may not even
// have reported the creation yet.
func (u *users) waitGone(m *model) error {
	return assert.Poll(u.t.Context(), m.name+" is gone", func() error {
		vm, err := u.api().Get(context.Background(), m.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New(framework.FormatStatus(vm)))
	})
}

// waitSwept waits until the server of a deleted VirtualMachine is removed. If the finalizer is added
// during the deletion, kube-apiserver may delete the object without regard to the finalizer. Then the
// orphan sweep removes the server.
func (u *users) waitSwept(m *model) error {
	return assert.Poll(u.t.Context(), "the sweep removes the server of "+m.name, func() error {
		r := environment.ReadFakeServer(u.t, types.UID(m.uid))
		return assert.ErrorUnless(r == nil, "%+v", r)
	})
}

// recreate deletes a VirtualMachine and creates another of the same name, as kubectl replace --force does.
func (u *users) recreate(t *rapid.T, m *model) {
	u.delete(t, m)
	u.create(t, m)
}

// rest waits until Drover has nothing to do, and compares the VirtualMachines and servers with the model.
func (u *users) rest(t *rapid.T, m *model) {
	vm, err := u.states.wait("at rest", m.name, func(vm *api.VirtualMachine) bool {
		return vm != nil && string(vm.UID) == m.uid && vm.Generation >= m.generation && vm.Status.ObservedGeneration == vm.Generation && outcome(vm) != ""
	})
	if err != nil {
		t.Fatal(err)
	}
	r := environment.ReadFakeServer(u.t, vm.UID)
	if r == nil {
		t.Fatalf("%s lacks a server; its status is %s", m.name, framework.FormatStatus(vm))
	}
	wantState := rules.WantedState(m.spec.Action)
	cpu := m.spec.Resource[api.ResourceCPU]
	wantPending := r.Image != m.spec.Image.Source || len(r.Ports) != len(m.spec.Ports)
	if r.State != wantState || r.CPUMilli != cpu.MilliValue() {
		t.Fatalf("%s is %s with %dm, want %s with %s: %s", m.name, r.State, r.CPUMilli, wantState, cpu.String(), framework.FormatStatus(vm))
	}
	m.checkRun(t, vm, r.Run)
	if wantPending != (len(vm.Status.PendingFields) > 0) || wantPending && wantState == driver.StateStopped {
		t.Fatalf("%s has %+v, wants %+v: %s", m.name, r.ServerConfig, m.spec, framework.FormatStatus(vm))
	}
	m.run, m.mayRestart, m.mustRestart = r.Run, false, false
	if wantState == driver.StateStopped {
		m.run = ""
	}
}

// checkRun checks that the server was restarted if a user requested that, and only then.
func (m *model) checkRun(t *rapid.T, vm *api.VirtualMachine, run string) {
	switch {
	case m.run != "" && run != m.run && !m.mayRestart:
		t.Fatalf("%s was restarted, and no user requested that: %s", m.name, framework.FormatStatus(vm))
	case m.run == run && m.mustRestart:
		t.Fatalf("%s was not restarted: %s", m.name, framework.FormatStatus(vm))
	}
}

// clean deletes the VirtualMachines of a sequence.
func (u *users) clean(models []*model) {
	for _, m := range models {
		if m.spec == nil {
			continue
		}
		_ = u.vms.Delete(context.Background(), m.name, metav1.DeleteOptions{})
		_ = u.waitGone(m)
		_ = u.waitSwept(m)
	}
}

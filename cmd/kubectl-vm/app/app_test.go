// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	testingclock "k8s.io/utils/clock/testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// now is the time of tests.
var now = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// newOptions returns options whose clock stands still, and the output.
func newOptions() (*Options, *bytes.Buffer) {
	var out bytes.Buffer
	o := NewOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	o.Clock = testingclock.NewFakeClock(now)
	return o, &out
}

// vmWith returns a VM of generation 2 that a controller has seen, with a reason and condition
// Ready for five seconds.
func vmWith(phase api.Phase, reason string, ready metav1.ConditionStatus) *framework.VMBuilder {
	return framework.NewVM("web").Generation(2).Status(func(s *api.VirtualMachineStatus) {
		s.Phase, s.Reason, s.ObservedGeneration = phase, reason, 2
		s.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: ready, Reason: reason, LastTransitionTime: metav1.NewTime(now.Add(-5 * time.Second))}}
	}).Meta(func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) })
}

func withCondition(kind string) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		s.Conditions = append(s.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: s.Reason})
	}
}

// countingEnds puts an operation into a status that just counts how often its server was started again.
func countingEnds(s *api.VirtualMachineStatus) {
	s.Operation = &api.Operation{Type: api.OperationStart, Attempts: 2, Failure: api.FailureExited, Evicted: true, LastError: "it was evicted"}
}

// TestCountedEnds checks that a VM which runs is not said to fail for the ends before, which are named.
func TestCountedEnds(t *testing.T) {
	runs := vmWith(api.PhaseActive, api.ReasonChangePending, "False").Status(countingEnds).Obj()
	o, _ := newOptions()
	if facts := strings.Join(newDescriber(o).operationFacts(runs), " "); isFailing(runs) || !strings.Contains(facts, "started again 2 times in a row") || !strings.Contains(facts, "it was evicted") {
		t.Errorf("it fails: %t, %s", isFailing(runs), facts)
	}
	waits := vmWith(api.PhaseFailed, api.ReasonRestarting, "False").Status(countingEnds).Obj()
	if facts := strings.Join(newDescriber(o).operationFacts(waits), " "); !isFailing(waits) || !strings.Contains(facts, "starting the server") {
		t.Errorf("one that waits to be started fails: %t, %s", isFailing(waits), facts)
	}
}

func withAttempts(n int32) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		next := metav1.NewMicroTime(now.Add(42 * time.Second))
		s.Operation = &api.Operation{
			Type: api.OperationCreate, Attempts: n, StartedAt: metav1.NewMicroTime(now.Add(-time.Minute)), NextRetryTime: &next, Reason: s.Reason, LastError: "it broke",
		}
	}
}

func TestVerdict(t *testing.T) {
	deleted := func(b *framework.VMBuilder) *framework.VMBuilder { return b.DeletionTimestamp(now) }
	tests := map[string]struct {
		vm   *framework.VMBuilder
		want verdict
	}{
		"runs":                     {vmWith(api.PhaseActive, api.ReasonRunning, "True"), verdictHealthy},
		"stopped as asked":         {vmWith(api.PhaseStopped, api.ReasonStoppedAsAsked, "True"), verdictHealthy},
		"a job that is done":       {vmWith(api.PhaseStopped, api.ReasonCompleted, "True"), verdictHealthy},
		"boots":                    {vmWith(api.PhaseCreating, api.ReasonStarting, "False"), verdictWaiting},
		"fails for the first time": {vmWith(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(withAttempts(1)), verdictWaiting},
		"fails again and again":    {vmWith(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(withAttempts(manyAttempts)), verdictNeedsYou},
		"fails for long": {vmWith(api.PhaseActive, api.ReasonProbeFailing, "False").Status(func(s *api.VirtualMachineStatus) {
			s.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Hour))
		}), verdictNeedsYou},
		"stops for long": {vmWith(api.PhaseActive, api.ReasonStopping, "False").Status(func(s *api.VirtualMachineStatus) {
			s.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Hour))
		}), verdictNeedsYou},
		"was evicted, and runs again": {vmWith(api.PhaseActive, api.ReasonRunning, "True").Status(withAttempts(manyAttempts)), verdictHealthy},
		"boots for long": {vmWith(api.PhaseCreating, api.ReasonFetching, "False").Status(func(s *api.VirtualMachineStatus) {
			s.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Hour))
		}), verdictWaiting},
		"needs a person":              {vmWith(api.PhaseFailed, api.ReasonPortConflict, "False").Status(withAttempts(1)), verdictNeedsYou},
		"stalled":                     {vmWith(api.PhaseFailed, api.ReasonInvalid, "False").Status(withCondition(api.ConditionStalled)), verdictNeedsYou},
		"stalled by a later reason":   {vmWith(api.PhaseFailed, "OfALaterVersion", "False").Status(withCondition(api.ConditionStalled)), verdictNeedsYou},
		"a later reason":              {vmWith(api.PhaseFailed, "OfALaterVersion", "False"), verdictWaiting},
		"waits for a restart":         {vmWith(api.PhaseActive, api.ReasonChangePending, "False"), verdictNeedsYou},
		"an engine that is away":      {vmWith(api.PhaseUnknown, api.ReasonEngineUnavailable, "Unknown"), verdictWaiting},
		"being deleted":               {deleted(vmWith(api.PhaseTerminating, api.ReasonTerminating, "False")), verdictWaiting},
		"a deletion that is blocked":  {deleted(vmWith(api.PhaseTerminating, api.ReasonEngineMismatch, "Unknown").Status(withCondition(api.ConditionDeletionBlocked))), verdictNeedsYou},
		"a deletion that may go on":   {deleted(vmWith(api.PhaseTerminating, api.ReasonEngineUnavailable, "Unknown").Status(withCondition(api.ConditionDeletionBlocked))), verdictWaiting},
		"just created":                {framework.NewVM("web").Meta(func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.NewTime(now) }), verdictWaiting},
		"seen by none":                {framework.NewVM("web").Meta(func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute)) }), verdictNeedsYou},
		"just changed":                {vmWith(api.PhaseActive, api.ReasonRunning, "True").Generation(3).Meta(changedBefore(time.Second)), verdictWaiting},
		"a change that none has seen": {vmWith(api.PhaseActive, api.ReasonRunning, "True").Generation(3).Meta(changedBefore(time.Minute)), verdictNeedsYou},
	}
	for name, test := range tests {
		o, _ := newOptions()
		d := newDescriber(o).diagnoseVM(test.vm.Obj())
		if d.verdict != test.want {
			t.Errorf("%s: verdict %d, want %d", name, d.verdict, test.want)
		}
		if d.verdict != verdictHealthy && len(d.steps) == 0 && !strings.Contains(name, "later") {
			t.Errorf("%s: nothing to do", name)
		}
	}
}

func changedBefore(ago time.Duration) func(*metav1.ObjectMeta) {
	return func(m *metav1.ObjectMeta) {
		at, status := metav1.NewTime(now.Add(-ago)), metav1.NewTime(now)
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Time: &at}, {Manager: "drover", Subresource: "status", Time: &status}}
	}
}

func TestDiagnosis(t *testing.T) {
	o, _ := newOptions()
	vm := vmWith(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(withAttempts(7)).Status(func(s *api.VirtualMachineStatus) {
		s.Message = "pull image x: \x1b[2Jnot found"
		s.Driver, s.Binding = "docker", &api.Binding{Driver: "docker", EngineID: "3f6c8a52-8e1b-4f9a"}
	}).Status(withCondition(api.ConditionObserved)).Obj()
	d := newDescriber(o).diagnoseVM(vm)
	text := strings.Join(append(append([]string{d.headline, d.message}, d.facts...), d.steps...), "\n")
	for _, want := range []string{
		"web is not ready: Failed, ImageUnavailable", "pull image x: ?[2Jnot found", "creating the server for 60s", "failed 7 times in a row",
		"next try is in 42s, at 2026-01-31 12:00:42Z", "The last error: it broke", "Ready has been False for 5s", "(3f6c8a52-8e1b-4f9a)", "and it does not have the server", "docker pull",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

// TestOneView checks that show and explain say the same of the state, of the step in progress and of
// the changes that wait for a restart.
func TestOneView(t *testing.T) {
	vm := vmWith(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(withAttempts(7)).Status(func(s *api.VirtualMachineStatus) {
		s.Message, s.PendingFields = "not found", []string{"ports"}
	}).Obj()
	o, _ := newOptions()
	v := newDescriber(o).viewOf(vm)
	table := ""
	for _, r := range v.table {
		table += r.value + "\n"
	}
	facts := strings.Join(v.facts, " ")
	for _, want := range []string{"creating the server for 60s", "failed 7 times in a row", "next try is in 42s", "restart web): ports."} {
		if !strings.Contains(table, want) || !strings.Contains(facts, want) {
			t.Errorf("not both say %q:\n%s\n%s", want, table, facts)
		}
	}
}

func TestPowerChanges(t *testing.T) {
	running := vmWith(api.PhaseActive, api.ReasonRunning, "True")
	tests := map[string]struct {
		change  func(*api.VirtualMachine, time.Time) (*powerChange, string, error)
		vm      *framework.VMBuilder
		want    api.Action
		restart bool
		fails   bool
	}{
		"start what runs":        {change: startVM, vm: running},
		"start what is off":      {change: startVM, vm: vmWith(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), want: api.ActionActive},
		"start what is paused":   {change: startVM, vm: vmWith(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), want: api.ActionActive},
		"start what has ended":   {change: startVM, vm: vmWith(api.PhaseStopped, api.ReasonCompleted, "True"), restart: true},
		"start what has failed":  {change: startVM, vm: vmWith(api.PhaseFailed, api.ReasonExited, "False"), restart: true},
		"stop what runs":         {change: stopVM, vm: running, want: api.ActionStopped},
		"stop what is paused":    {change: stopVM, vm: vmWith(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), want: api.ActionStopped},
		"stop what is off":       {change: stopVM, vm: vmWith(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped)},
		"pause what runs":        {change: pauseVM, vm: vmWith(api.PhaseActive, api.ReasonRunning, "True"), want: api.ActionPaused},
		"pause what is off":      {change: pauseVM, vm: vmWith(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), fails: true},
		"pause what is paused":   {change: pauseVM, vm: vmWith(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused)},
		"resume what is paused":  {change: resumeVM, vm: vmWith(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), want: api.ActionActive},
		"resume what runs":       {change: resumeVM, vm: vmWith(api.PhaseActive, api.ReasonRunning, "True")},
		"resume what is off":     {change: resumeVM, vm: vmWith(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), fails: true},
		"restart what runs":      {change: restartVM, vm: vmWith(api.PhaseActive, api.ReasonRunning, "True"), restart: true},
		"restart what is off":    {change: restartVM, vm: vmWith(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), fails: true},
		"restart what is paused": {change: restartVM, vm: vmWith(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), fails: true},
	}
	for name, test := range tests {
		change, unchanged, err := test.change(test.vm.Obj(), now)
		switch {
		case test.fails != (err != nil):
			t.Errorf("%s: error %v", name, err)
		case test.fails:
		case test.want == "" && !test.restart:
			if change != nil || unchanged == "" {
				t.Errorf("%s: %+v, %q; want no change and why", name, change, unchanged)
			}
		case change == nil || change.Action != test.want || (change.RestartedAt != nil) != test.restart:
			t.Errorf("%s: %+v, want %q, restart %t", name, change, test.want, test.restart)
		}
	}
}

func TestRestartHasAlwaysANewTime(t *testing.T) {
	for name, earlier := range map[string]time.Time{"within a second": now, "by a clock that is ahead": now.Add(time.Hour), "long ago": now.Add(-time.Hour)} {
		vm := vmWith(api.PhaseActive, api.ReasonRunning, "True").RestartedAt(earlier).Status(func(s *api.VirtualMachineStatus) {
			s.RestartedAt = &metav1.Time{Time: earlier}
		}).Obj()
		at := restartAt(vm, now.Add(300*time.Millisecond)).RestartedAt
		if !at.After(earlier) {
			t.Errorf("%s: %s after %s", name, at, earlier)
		}
		if at.Nanosecond() != 0 {
			t.Errorf("%s: %s has parts of a second, which the API drops", name, at)
		}
	}
}

func TestGoalReady(t *testing.T) {
	restarting := vmWith(api.PhaseActive, api.ReasonRunning, "True").RestartedAt(now)
	tests := map[string]struct {
		vm    *framework.VMBuilder
		done  bool
		fails bool
	}{
		"ready":                            {vm: vmWith(api.PhaseActive, api.ReasonRunning, "True"), done: true},
		"ready before the change was seen": {vm: vmWith(api.PhaseActive, api.ReasonRunning, "True").Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 })},
		"not ready":                        {vm: vmWith(api.PhaseCreating, api.ReasonStarting, "False")},
		"a restart that is to come":        {vm: restarting},
		"stalled":                          {vm: vmWith(api.PhaseFailed, api.ReasonInvalid, "False").Status(withCondition(api.ConditionStalled)), fails: true},
		"deleted":                          {vm: vmWith(api.PhaseActive, api.ReasonRunning, "True").DeletionTimestamp(now), fails: true},
	}
	for name, test := range tests {
		done, err := whenReady(2)(test.vm.Obj())
		if done != test.done || (err != nil) != test.fails {
			t.Errorf("%s: %t and %v", name, done, err)
		}
	}
}

func TestGoalPowered(t *testing.T) {
	pending := func() *framework.VMBuilder { return vmWith(api.PhaseActive, api.ReasonChangePending, "False") }
	refused := func(s *api.VirtualMachineStatus) { s.RefusedField = &api.RefusedField{Field: "image"} }
	tests := map[string]struct {
		vm    *framework.VMBuilder
		done  bool
		fails bool
	}{
		"ready":                     {vm: vmWith(api.PhaseActive, api.ReasonRunning, "True"), done: true},
		"a change waits":            {vm: pending(), done: true},
		"a change was not seen":     {vm: pending().Generation(3).Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 })},
		"a restart is to come":      {vm: pending().RestartedAt(now)},
		"paused, and wanted active": {vm: vmWith(api.PhasePaused, api.ReasonChangePending, "False")},
		"a step is in progress":     {vm: pending().Status(withAttempts(0))},
		"earlier ends are counted":  {vm: pending().Status(countingEnds), done: true},
		"a field is refused":        {vm: vmWith(api.PhaseActive, api.ReasonImageImmutable, "False").Status(refused).Status(withCondition(api.ConditionStalled)), done: true},
		"stalled":                   {vm: vmWith(api.PhaseFailed, api.ReasonInvalid, "False").Status(withCondition(api.ConditionStalled)), fails: true},
		"deleted":                   {vm: pending().DeletionTimestamp(now), fails: true},
	}
	for name, test := range tests {
		done, err := whenPowered(2)(test.vm.Obj())
		if done != test.done || (err != nil) != test.fails {
			t.Errorf("%s: %t and %v", name, done, err)
		}
	}
}

func TestRemovalText(t *testing.T) {
	base := func(driver string) *framework.VMBuilder {
		return vmWith(api.PhaseActive, api.ReasonRunning, "True").Driver(driver).Resource(api.ResourceRootDisk, "40G").Spec(func(s *api.VirtualMachineSpec) {
			s.Volumes = []api.Volume{{Name: "data", Size: s.Resource[api.ResourceRootDisk]}}
		})
	}
	tests := map[string]struct {
		vm   *framework.VMBuilder
		keep bool
		want string
		not  string
	}{
		"a machine":   {vm: base("qemu"), want: "root 40G, volume data 40G", not: "kept"},
		"a container": {vm: base("docker"), want: "all that was written in the container", not: "40G"},
		"kept":        {vm: base("qemu"), keep: true, want: "is kept with its data", not: "disks"},
		"retained":    {vm: base("qemu").DeletionPolicy(api.DeletionRetain), want: "is kept with its data", not: "disks"},
	}
	for name, test := range tests {
		got := removalText(test.vm.Obj(), test.keep)
		if !strings.Contains(got, test.want) || strings.Contains(got, test.not) {
			t.Errorf("%s: %q, want %q and not %q", name, got, test.want, test.not)
		}
	}
}

func TestListOfOneVM(t *testing.T) {
	o, out := newOptions()
	l := &listOptions{Options: o}
	vm := vmWith(api.PhaseActive, api.ReasonRunning, "True").Resource(api.ResourceCPU, "1000").Status(func(s *api.VirtualMachineStatus) {
		for _, port := range []int32{80, 81, 82, 83, 84} {
			s.Addresses = []string{"10.213.0.7", "192.0.2.2"}
			s.Ports = append(s.Ports, api.PortStatus{Port: port, HostPort: 8000 + port, Protocol: api.ProtocolTCP})
		}
	}).Obj()
	assert.NoError(t, l.printTable([]api.VirtualMachine{*vm}))
	want := "NAME   STATE    READY   REASON     CPU   MEMORY   ADDRESS      PORTS                        AGE\n" +
		"web    Active   True    Running   1000       4G   10.213.0.7   8080:80,8081:81,8082:82,+2   60m\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

// TestCreateProgress checks that only steps that succeeded are reported as done.
func TestCreateProgress(t *testing.T) {
	t.Parallel()
	var shown []string
	p := &createProgress{
		clock: testingclock.NewFakeClock(now), screen: screen{terminal: true, width: 40}, program: "kubectl vm",
		print: func(text string) { shown = append(shown, text) },
	}
	failed := vmWith(api.PhaseFailed, api.ReasonImageUnavailable, metav1.ConditionFalse).Obj()
	failed.Status.Operation = &api.Operation{Attempts: 1, Reason: api.ReasonImageUnavailable, LastError: "pull image localhost:5000/absent: refused"}
	crashed := vmWith(api.PhaseActive, api.ReasonRestarting, metav1.ConditionFalse).Obj()
	crashed.Status.Message = "the server ended with code 127"
	for _, vm := range []*api.VirtualMachine{
		vmWith(api.PhaseCreating, api.ReasonFetching, metav1.ConditionFalse).Obj(),
		failed,
		vmWith(api.PhaseCreating, api.ReasonFetching, metav1.ConditionFalse).Obj(),
		vmWith(api.PhaseActive, api.ReasonProbeFailing, metav1.ConditionFalse).Obj(),
		crashed,
		vmWith(api.PhaseActive, api.ReasonProbeFailing, metav1.ConditionFalse).Obj(),
		vmWith(api.PhaseActive, api.ReasonRunning, metav1.ConditionTrue).Obj(),
	} {
		p.observeVM(vm)
	}
	name := failed.Name
	want := []string{
		"  ✗ ImageUnavailable: pull image\n    localhost:5000/absent: refused",
		"    What to do: kubectl vm explain " + name,
		"  ✓ image fetched                0s",
		"  ✗ Restarting: the server ended with\n    code 127",
		"    What it printed: kubectl vm logs " + name,
		"  ✓ server restarted             0s",
		"  ✓ guest answers                0s",
	}
	if !slices.Equal(shown, want) {
		t.Errorf("printed %q, want %q", shown, want)
	}
}

// TestRetryOnConflict checks that a change which failed is never taken for one that was made, such as
// one whose request has timed out.
func TestRetryOnConflict(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachines"}, "web", errors.New("the object has been modified"))
	for name, results := range map[string][]error{
		"made":              {nil},
		"after a conflict":  {conflict, nil},
		"timed out":         {fmt.Errorf("delete: %w", context.DeadlineExceeded)},
		"cancelled":         {conflict, fmt.Errorf("delete: %w", context.Canceled)},
		"refused":           {conflict, errors.New("no")},
		"conflicts to stay": {conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			err := retryOnConflict(func() error {
				calls++
				return results[calls-1]
			})
			if want := results[len(results)-1]; !errors.Is(err, want) || calls != len(results) {
				t.Errorf("%d calls return %v, want %d and %v", calls, err, len(results), want)
			}
		})
	}
}

// TestPrintedCommandsNameThePlace checks that commands for users to paste lead where this one led.
func TestPrintedCommandsNameThePlace(t *testing.T) {
	t.Parallel()
	o, out := newOptions()
	cmd := NewCommand(o)
	cmd.SetArgs([]string{"options", "-n", "blue", "--context", "my cluster"})
	assert.NoError(t, cmd.Execute())
	const place = " --context 'my cluster' --namespace blue"
	if o.Program != "kubectl vm"+place || o.Kubectl != "kubectl"+place {
		t.Errorf("the printed commands begin with %q and %q\n%s", o.Program, o.Kubectl, out)
	}
}

// TestFractionOfACPU checks that a manifest has a fraction as the API server takes it, which refuses the number
// 1.5.
func TestFractionOfACPU(t *testing.T) {
	size, err := (&vmFlags{cpu: "1.5", memory: "1.5G"}).size()
	assert.NoError(t, err)
	text, err := json.Marshal(size)
	if want := `{"cpu":"1500m","memory":"1500M"}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
}

// TestCopyErrors checks that a guest's words about a copy are text to the terminal.
func TestCopyErrors(t *testing.T) {
	t.Parallel()
	o, _ := newOptions()
	var errs bytes.Buffer
	o.ErrOut = &errs
	_, err := io.WriteString(guestStreams(nil, nil, o.ErrOut).Stderr, "\x1b]0;title\a no such file\n")
	if got := errs.String(); err != nil || got != "?]0;title? no such file\n" {
		t.Errorf("it prints %q, %v", got, err)
	}
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/filesync"
	"cloudnative.tw/drover/internal/controller/probe"
	"cloudnative.tw/drover/internal/controller/queue"
	"cloudnative.tw/drover/internal/controller/vmclient"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// rig is one per-driver controller with an in-memory API and engine and a fake
// clock. The real API and engines are covered by test/integration.
type rig struct {
	t      *testing.T
	clock  *testingclock.FakeClock
	memory *fake.Memory
	engine *interceptedDriver
	inv    *inventory.Inventory
	api    client.WithWatch
	r      *Reconciler
	events *events.FakeRecorder
	writes int
	// statusErr, if set, fails writes of the status.
	statusErr error
	// prunesObjects makes the API drop status.objects.
	prunesObjects bool
	// cached, if set, is the object in the cache.
	cached *api.VirtualMachine
	// deposed, if set, is why the reconciler may not act.
	deposed error
}

// A call is a call of the driver, which the test may replace.
type call = func() (driver.Server, error)

// failWith returns calls that fail before they do anything.
func failWith(err error) func(driver.ServerSpec, call) (driver.Server, error) {
	return func(driver.ServerSpec, call) (driver.Server, error) { return driver.Server{}, err }
}

// interceptedDriver passes the inventory's calls to the driver, except those that a
// test replaces.
type interceptedDriver struct {
	driver.Driver
	mu     sync.Mutex
	ensure func(driver.ServerSpec, call) (driver.Server, error)
	delete func(func() error) error
	calls  int
	// outdated makes complete lists return outdatedList.
	outdated     atomic.Bool
	outdatedList []driver.Server
	// failQueries fails the queries for single servers.
	failQueries atomic.Bool
	// fetching makes lists show servers as waiting for their image.
	fetching atomic.Bool
	// leaving makes lists show servers that are off as having a last run that is yet to be removed.
	leaving atomic.Bool
	// hasLeftovers makes lists show that the driver has to remove something of servers that are off.
	hasLeftovers atomic.Bool
	// disrupts makes lists show that others have ended the runs of servers that are off, or end them.
	disrupts atomic.Bool
	// evicts makes these ends evictions by the host.
	evicts atomic.Bool
	// needs makes lists show that running servers ask for an Ensure.
	needs atomic.Bool
	// held makes lists show that others hold remains of servers that are being removed.
	held atomic.Bool
	// guestEnd is the end of a guest while its server is still stopping.
	guestEnd atomic.Pointer[driver.Exit]
}

func (m *interceptedDriver) Unwrap() driver.Driver { return m.Driver }

func (m *interceptedDriver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	if m.failQueries.Load() && len(uids) > 0 {
		return nil, errors.New("inspect: boom")
	}
	if m.outdated.Load() && len(uids) == 0 {
		return m.outdatedList, nil
	}
	servers, err := m.Driver.List(ctx, uids...)
	for n := range servers {
		m.disguise(&servers[n])
	}
	return servers, err
}

// disguise changes a listed server as the test wants.
func (m *interceptedDriver) disguise(s *driver.Server) {
	if m.fetching.Load() {
		s.State = driver.StatePending
	}
	if m.held.Load() {
		s.State, s.Progress = driver.StateRemoving, "the disk is held by backup.example/hold"
	}
	if e := m.guestEnd.Load(); e != nil && s.State == driver.StateStopping {
		s.Exit = e
	}
	s.NeedsEnsure = s.NeedsEnsure || m.needs.Load() && s.State == driver.StateRunning
	if m.disrupts.Load() && isEnding(s.State) {
		s.Disruption = "the pod was evicted"
	}
	if m.evicts.Load() && s.Exit != nil {
		s.Exit.Evicted = true
	}
	s.NeedsEnsure = s.NeedsEnsure || m.hasLeftovers.Load() && s.State == driver.StateStopped
	if m.leaving.Load() && s.State == driver.StateStopped {
		s.IsLeaving, s.Progress = true, "the last run has yet to be removed"
	}
}

// errNoDeadline fails calls without a deadline, which would never return from an engine that hangs.
var errNoDeadline = errors.New("the call lacks a deadline")

func (m *interceptedDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if _, ok := ctx.Deadline(); !ok {
		return driver.Server{}, errNoDeadline
	}
	m.mu.Lock()
	m.calls++
	do := m.ensure
	m.mu.Unlock()
	live := func() (driver.Server, error) { return m.Driver.Ensure(ctx, spec) }
	if do == nil {
		return live()
	}
	return do(spec, live)
}

func (m *interceptedDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	if _, ok := ctx.Deadline(); !ok {
		return errNoDeadline
	}
	live := func() error { return m.Driver.Delete(ctx, t, retain) }
	if m.delete == nil {
		return live()
	}
	return m.delete(live)
}

func newRig(t *testing.T, options fake.Options) *rig {
	t.Helper()
	g := &rig{t: t, clock: testingclock.NewFakeClock(vmtest.T0), events: events.NewFakeRecorder(1000)}
	g.memory = fake.NewMemory(g.clock)
	options.ClusterID, options.Memory, options.Clock, options.Log = "cluster", g.memory, g.clock, logr.Discard()
	d, err := fake.New(options)
	assert.NoError(t, err)
	g.engine = &interceptedDriver{Driver: d}
	g.startInventory()
	g.api = g.newAPI()
	g.newReconciler()
	return g
}

// newRunning returns a rig with a VM that has been reconciled.
func newRunning(t *testing.T, options fake.Options, b *framework.VMBuilder) *rig {
	t.Helper()
	g := newRig(t, options)
	g.create(b)
	g.reconcile()
	return g
}

func (g *rig) startInventory() { g.startInventoryOf("fake") }

func (g *rig) startInventoryOf(name string) {
	g.t.Helper()
	inv, err := inventory.New(inventory.Options{Name: name, Driver: g.engine, Clock: g.clock, Log: logr.Discard()})
	assert.NoError(g.t, err)
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = inv.Start(ctx) }()
	g.t.Cleanup(func() { cancel(); <-done })
	g.inv = inv
	g.eventually("the engine is listed", func() bool { return inv.Get("none").Answer == inventory.Gone })
}

// newAPI counts the writes to VirtualMachines.
func (g *rig) newAPI() client.WithWatch {
	scheme := runtime.NewScheme()
	_ = clientgoscheme.AddToScheme(scheme)
	_ = api.AddToScheme(scheme)
	return clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&api.VirtualMachine{}).WithIndex(&api.VirtualMachine{}, queue.PriorityIndex, queue.IndexPriority).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
				g.writes++
				return c.Patch(ctx, obj, patch, opts...)
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
				g.writes++
				if g.statusErr != nil {
					return g.statusErr
				}
				if vm, ok := obj.(*api.VirtualMachine); ok && g.prunesObjects {
					vm.Status.Objects = nil
				}
				return c.SubResource(sub).Update(ctx, obj, opts...)
			},
		}).Build()
}

// newReconciler simulates the start of a controller, without any knowledge.
func (g *rig) newReconciler() {
	g.r = &Reconciler{
		Client: vmclient.New(g.api, g.api), Recorder: g.events, Clock: g.clock,
		Driver: "fake", Drivers: []string{"fake"}, Inventory: g.inv, Epoch: func() uint64 { return 7 },
		MayAct: func() error { return g.deposed }, Decisions: g.newHistory(),
	}
}

const (
	// triesBeforeStep are about two seconds.
	triesBeforeStep = 40
	// maxRefreshPause equals the constant of the inventory.
	maxRefreshPause = 100 * time.Millisecond
)

// eventually waits for the inventory. A refresh during which the test has stepped the
// clock took long by that clock. The pause that follows it ends only by another step,
// which is as long as the longest pause.
func (g *rig) eventually(condition string, ok func() bool) {
	g.t.Helper()
	tries := 0
	assert.Eventually(g.t, condition, func(testing.TB) error {
		if ok() {
			return nil
		}
		if tries++; tries == triesBeforeStep {
			g.clock.Step(maxRefreshPause)
		}
		return errors.New("it is not so")
	})
}

func (g *rig) create(b *framework.VMBuilder) {
	g.t.Helper()
	vm := b.UID("uid-1").Generation(1).Obj()
	vm.Status.ObservedGeneration = -1
	assert.NoError(g.t, g.api.Create(g.t.Context(), vm))
}

var key = types.NamespacedName{Namespace: "default", Name: "vm"}

func (g *rig) vm() *api.VirtualMachine {
	g.t.Helper()
	vm := &api.VirtualMachine{}
	if err := g.api.Get(g.t.Context(), key, vm); err != nil {
		if client.IgnoreNotFound(err) != nil {
			g.t.Fatal(err)
		}
		return nil
	}
	return vm
}

// edit changes the spec, as a user.
func (g *rig) edit(change func(*api.VirtualMachineSpec)) {
	g.t.Helper()
	vm := g.vm()
	change(&vm.Spec)
	vm.Generation++
	assert.NoError(g.t, g.api.Update(g.t.Context(), vm))
}

// reconcile runs passes until one requests no other within a second, and returns
// the last one's result.
func (g *rig) reconcile() ctrl.Result {
	g.t.Helper()
	for range 20 {
		result, err := g.pass()
		assert.NoError(g.t, err)
		if result.RequeueAfter == 0 || result.RequeueAfter > conflictRetry {
			return result
		}
		g.clock.Step(result.RequeueAfter)
	}
	g.t.Fatal("reconcile does not come to rest")
	return ctrl.Result{}
}

func (g *rig) setAction(action api.Action) {
	g.t.Helper()
	g.edit(func(s *api.VirtualMachineSpec) { s.Action = action })
}

// delete requests the deletion, as a user.
func (g *rig) delete() {
	g.t.Helper()
	assert.NoError(g.t, g.api.Delete(g.t.Context(), g.vm()))
}

// pass runs one pass.
func (g *rig) pass() (ctrl.Result, error) {
	return g.r.Reconcile(g.t.Context(), ctrl.Request{NamespacedName: key})
}

// passes runs a number of passes, regardless of the requeues that they request.
func (g *rig) passes(count int) {
	g.t.Helper()
	for range count {
		_, err := g.pass()
		assert.NoError(g.t, err)
	}
}

// runFor runs a pass whenever the one before has requested it.
func (g *rig) runFor(length time.Duration) {
	g.t.Helper()
	g.runWhile(func() bool { return true }, length)
}

// runWhile is runFor until isSo does not hold, and returns how long that took.
func (g *rig) runWhile(isSo func() bool, atMost time.Duration) time.Duration {
	g.t.Helper()
	began := g.clock.Now()
	for g.clock.Since(began) < atMost {
		wait := g.reconcile().RequeueAfter
		if !isSo() {
			break
		}
		if wait == 0 {
			g.t.Fatal("no other pass is requested")
		}
		g.clock.Step(wait)
	}
	return g.clock.Since(began)
}

// requestRestart requests a restart of a VM that has run for a minute.
func (g *rig) requestRestart() {
	g.t.Helper()
	g.clock.Step(time.Minute)
	g.edit(restartAtT0)
}

func restartAtT0(s *api.VirtualMachineSpec) { s.RestartedAt = &metav1.Time{Time: vmtest.T0} }

// countWrites returns the writes that fn makes.
func (g *rig) countWrites(fn func()) int {
	before := g.writes
	fn()
	return g.writes - before
}

func (g *rig) server() driver.Server { return g.inv.Get("uid-1").Server }

func (g *rig) wantPhase(phase api.Phase, reason string) {
	g.t.Helper()
	vm := g.vm()
	if vm.Status.Phase != phase || vm.Status.Reason != reason {
		g.t.Errorf("phase %s, reason %s (%s), want %s, %s", vm.Status.Phase, vm.Status.Reason, vm.Status.Message, phase, reason)
	}
}

func (g *rig) wantCondition(kind string, status metav1.ConditionStatus) {
	g.t.Helper()
	c := meta.FindStatusCondition(g.vm().Status.Conditions, kind)
	if (c == nil && status != "") || (c != nil && c.Status != status) {
		g.t.Errorf("condition %s is %+v, want %q", kind, c, status)
	}
}

// wantNothing checks that neither the VM nor a server is left.
func (g *rig) wantNothing() {
	g.t.Helper()
	if vm := g.vm(); vm != nil || len(g.memory.Records()) != 0 {
		g.t.Errorf("left: %+v, %v", vm, g.memory.Records())
	}
}

func (g *rig) wantWrites(want int, fn func()) {
	g.t.Helper()
	if got := g.countWrites(fn); got != want {
		g.t.Errorf("%d API writes, want %d", got, want)
	}
}

// refusingProber is a driver whose probes fail.
type refusingProber struct{}

func (refusingProber) Probe(context.Context, types.UID, int32) error { return errors.New("refused") }

// TestProbeBeginsWithTheServer checks that the pass that starts a server also
// starts its probe. The status therefore never claims that the server is off.
func TestProbeBeginsWithTheServer(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.r.probes = probe.New(t.Context(), clock.RealClock{}, refusingProber{}, func(types.NamespacedName) {})
	g.create(framework.NewVM("vm").ReadinessProbe(80))
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonProbeFailing)
	vm := g.vm()
	assert.True(t, strings.HasPrefix(vm.Status.Message, "readinessProbe: "), "the message is %q", vm.Status.Message)
}

// TestEngineCheckPreventsReady checks that the check of a server by its engine counts for Ready, unless
// the spec has a probe.
func TestEngineCheckPreventsReady(t *testing.T) {
	t.Parallel()
	unhealthy := vmtest.ChangeServer(vmtest.Present(driver.StateRunning), func(s *driver.Server) { s.NotReady = "the check fails" })
	p := stepOf(vmtest.ReportedVM().Obj(), unhealthy)
	if got := policy.Decide(p.r.inputOf(p.facts)).Status; got.Ready || got.Reason != api.ReasonProbeFailing || got.Message != "the check fails" || got.Phase != api.PhaseActive {
		t.Errorf("without a probe it is %+v", got)
	}
	p = stepOf(vmtest.ReportedVM().ReadinessProbe(80).Obj(), unhealthy)
	got := p.r.inputOf(p.facts).Probe
	assert.True(t, !strings.Contains(got.Message, "the check fails"), "with a probe that is %+v", got)
}

// TestWritesPerAction checks exact counts: a create writes the finalizer and the
// status, a delete removes the finalizer, and so on.
func TestWritesPerAction(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.wantWrites(2, func() { g.reconcile() })
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	g.wantCondition(api.ConditionReady, metav1.ConditionTrue)
	g.wantWrites(0, func() { g.reconcile() })

	g.setAction(api.ActionStopped)
	g.wantWrites(1, func() { g.reconcile() })
	g.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
	g.wantCondition(api.ConditionReady, metav1.ConditionTrue)
	g.wantCondition(api.ConditionRunning, metav1.ConditionFalse)

	g.setAction(api.ActionActive)
	g.wantWrites(1, func() { g.reconcile() })
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	n := g.vm().Status.RestartCount
	assert.True(t, n == 0 || n == 1, "restartCount %d", n)

	g.setAction(api.ActionPaused)
	g.wantWrites(1, func() { g.reconcile() })
	g.wantPhase(api.PhasePaused, api.ReasonPausedAsAsked)
	g.setAction(api.ActionActive)
	g.wantWrites(1, func() { g.reconcile() })

	run := g.server().Run
	g.requestRestart()
	g.wantWrites(2, func() { g.reconcile() })
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.True(t, g.server().Run != run, "restartedAt did not restart")
	run = g.server().Run
	g.wantWrites(0, func() { g.reconcile() })
	assert.True(t, g.server().Run == run, "restarted twice")

	g.delete()
	g.wantWrites(1, func() { g.reconcile() })
	g.wantNothing()
	g.wantWrites(0, func() { g.reconcile() })
}

func TestFinalizerComesFirst(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		vm := g.vm()
		assert.True(t, len(vm.Finalizers) == 1 && vm.Annotations[api.AnnotationBound] == "fake/"+g.inv.Get("").EngineID+"/uid-1",
			"created with finalizers %v, bound to %q", vm.Finalizers, vm.Annotations[api.AnnotationBound])
		return live()
	}
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestClockOfTheAPI checks that an API server whose clock is an hour ahead delays nothing.
func TestClockOfTheAPI(t *testing.T) {
	t.Parallel()
	ahead := metav1.NewTime(vmtest.T0.Add(time.Hour))
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").Meta(func(m *metav1.ObjectMeta) { m.CreationTimestamp = ahead }))
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

func TestStaleObjectIsNotBound(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	stale := g.vm()
	g.setAction(api.ActionStopped)
	_, err := g.r.ensureFinalizer(t.Context(), stale)
	assert.True(t, err != nil, "the finalizer was written over a newer object")
	assert.True(t, g.engine.calls == 0, "the driver was called")
}

// TestSlowCreateShowsCreating checks that a step of more than 100 ms is reported.
func TestSlowCreateShowsCreating(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		err := assert.Poll(t.Context(), "the creation is reported", func() error { // not in the goroutine of the test
			g.clock.Step(progressDelay)
			if p := g.vm().Status.Phase; p != api.PhaseCreating {
				return errors.New(string(p))
			}
			return nil
		})
		assert.ReportError(t, err)
		return live()
	}
	g.wantWrites(3, func() { g.reconcile() })
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

func TestFailingCreateBacksOff(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm").Image("nope"))
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		if spec.Image.Source != "nope" {
			return live()
		}
		return driver.Server{}, driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "no such image: nope"))
	}
	writes := g.countWrites(func() { g.runFor(3 * time.Minute) })
	assert.True(t, g.engine.calls <= 8 && g.engine.calls >= 5, "%d tries in 3 minutes", g.engine.calls)
	assert.True(t, writes <= g.engine.calls+1, "%d writes for %d tries", writes, g.engine.calls)
	g.wantPhase(api.PhaseFailed, api.ReasonImageUnavailable)
	op := g.vm().Status.Operation
	assert.True(t, op != nil && op.LastError == "no such image: nope" && op.NextRetryTime != nil && int(op.Attempts) == g.engine.calls, "operation %+v", op)

	g.edit(func(s *api.VirtualMachineSpec) { s.Image.Source = "good" })
	g.wantWrites(1, func() { g.reconcile() })
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	op = g.vm().Status.Operation
	assert.True(t, op == nil, "operation %+v is still there", op)
}

func TestDeletionOfAFailingVM(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = failWith(driver.Errorf(driver.ErrExhausted, "cpu: needs 4, has 2"))
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonExhausted)
	g.delete()
	g.reconcile()
	g.wantNothing()
}

func TestFinalErrorStalls(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = failWith(driver.Errorf(driver.ErrUnsupported, "spec.userData: not here"))
	assert.Equal(t, "tries again after", g.reconcile().RequeueAfter, 0)
	g.wantPhase(api.PhaseFailed, api.ReasonUnsupported)
	g.wantCondition(api.ConditionStalled, metav1.ConditionTrue)
	g.wantWrites(0, func() { g.reconcile() })
	assert.Equal(t, "tries", g.engine.calls, 1)
	g.engine.ensure = nil
	g.setAction(api.ActionStopped)
	g.reconcile()
	g.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
	g.wantCondition(api.ConditionStalled, "")
}

// TestAmbiguousCreate covers a server that was created although the answer was
// lost.
func TestAmbiguousCreate(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		_, _ = live()
		return driver.Server{}, context.DeadlineExceeded
	}
	g.reconcile()
	g.engine.ensure = nil
	g.clock.Step(2 * time.Second)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.Equal(t, "servers", len(g.memory.Records()), 1)
}

// TestGoneIsUncertainAfterATimeout checks that the object exists as long as a creation
// with an unknown outcome may still happen.
func TestGoneIsUncertainAfterATimeout(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = failWith(context.DeadlineExceeded)
	g.reconcile()
	g.delete()
	g.reconcile()
	assert.Require(t, g.vm() != nil, "the finalizer was removed while the creation may still happen")
	g.wantCondition(api.ConditionDeletionBlocked, metav1.ConditionTrue)
	g.clock.Step(31 * time.Second)
	g.reconcile()
	g.wantNothing()
}

// TestStatusWriteFails checks that an API error goes to the queue's rate limiter,
// unlike a conflict and an object that is gone.
func TestStatusWriteFails(t *testing.T) {
	gr := schema.GroupResource{Group: api.GroupName, Resource: "virtualmachines"}
	tests := map[string]struct {
		err   error
		limit bool
		after time.Duration
	}{
		"server error": {apierrors.NewInternalError(errors.New("boom")), true, 0},
		"conflict":     {apierrors.NewConflict(gr, "vm", errors.New("changed")), false, conflictRetry},
		"gone":         {apierrors.NewNotFound(gr, "vm"), false, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, fake.Options{})
			g.create(framework.NewVM("vm"))
			g.statusErr = tc.err
			result, err := g.pass()
			assert.True(t, (err != nil) == tc.limit && result.RequeueAfter == tc.after, "%+v, %v", result, err)
			g.statusErr = nil
			g.reconcile()
			g.wantPhase(api.PhaseActive, api.ReasonRunning)
			n := len(g.memory.Records())
			assert.True(t, n == 1 && g.vm().Status.RestartCount == 0, "%d servers, restarted %d times", n, g.vm().Status.RestartCount)
		})
	}
}

// TestEngineLostInACall checks that an unreachable engine is not a failure of the
// operation, and that the server's status is unchanged.
func TestEngineLostInACall(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	for name, err := range map[string]error{"unavailable": driver.Errorf(driver.ErrUnavailable, "connection refused"), "timeout": context.DeadlineExceeded} {
		g.setAction(api.ActionStopped)
		g.engine.ensure = func(driver.ServerSpec, call) (driver.Server, error) {
			g.memory.SetAvailable(false)
			return driver.Server{}, err
		}
		result := g.reconcile()
		assert.True(t, result.RequeueAfter != 0 && result.RequeueAfter <= policy.OutageDelay, "%s: requeued after %s", name, result.RequeueAfter)
		vm := g.vm()
		assert.True(t, vm.Status.Server != nil && vm.Status.Phase != api.PhaseFailed, "%s: status %+v", name, vm.Status)
		g.observeOutage()
		g.engine.ensure = nil
		g.restoreEngine()
		g.reconcile()
		g.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
		g.setAction(api.ActionActive)
		g.reconcile()
	}
}

func TestOutage(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	id := g.server().ID
	g.observeOutage()
	var result ctrl.Result
	g.wantWrites(0, func() { result = g.reconcile() })
	assert.Require(t, result.RequeueAfter != 0, "is not requeued")
	g.clock.Step(6 * time.Second)
	g.wantWrites(1, func() { g.reconcile() })
	g.wantPhase(api.PhaseUnknown, api.ReasonEngineUnavailable)
	g.wantCondition(api.ConditionObserved, metav1.ConditionFalse)
	g.wantCondition(api.ConditionReady, metav1.ConditionUnknown)
	assert.True(t, g.vm().Status.Server.ID == id, "the last known server was dropped from the status")
	g.restoreEngine()
	g.wantWrites(1, func() { g.reconcile() })
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.True(t, g.server().ID == id && len(g.memory.Records()) == 1, "the server was created again")
}

// observeOutage makes the engine unreachable, and restoreEngine reachable again.
func (g *rig) observeOutage() {
	g.t.Helper()
	g.memory.SetAvailable(false)
	g.eventually("the outage is observed", func() bool { return g.inv.Get("uid-1").Answer == inventory.Unknown })
}

// loseEngine makes the engine unreachable until the status reports it.
func (g *rig) loseEngine() {
	g.t.Helper()
	g.observeOutage()
	g.clock.Step(6 * time.Second)
	g.reconcile()
	g.wantPhase(api.PhaseUnknown, api.ReasonEngineUnavailable)
}

func (g *rig) restoreEngine() {
	g.t.Helper()
	g.memory.SetAvailable(true)
	g.eventually("the engine is back", func() bool {
		g.clock.Step(time.Second)
		return g.inv.Get("uid-1").Answer != inventory.Unknown
	})
}

// TestChangesDuringAnOutage checks that a change during an outage is applied after
// it.
func TestChangesDuringAnOutage(t *testing.T) {
	image := func(s *api.VirtualMachineSpec) { s.Image = &api.Image{Source: "other"} }
	stopped := func(s *api.VirtualMachineSpec) { s.Action = api.ActionStopped }
	active := func(s *api.VirtualMachineSpec) { s.Action = api.ActionActive }
	tests := map[string]struct {
		before, during func(*api.VirtualMachineSpec)
		phase          api.Phase
		reason         string
	}{
		"an image": {nil, image, api.PhaseActive, api.ReasonChangePending},
		"stopped":  {nil, stopped, api.PhaseStopped, api.ReasonStoppedAsAsked},
		"active":   {stopped, active, api.PhaseActive, api.ReasonRunning},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm").Image("some").RestartPolicy(api.RestartOnFailure))
			if tc.before != nil {
				g.edit(tc.before)
				g.reconcile()
			}
			g.loseEngine()
			g.edit(tc.during)
			g.reconcile()
			g.restoreEngine()
			g.reconcile()
			g.wantPhase(tc.phase, tc.reason)
		})
	}
}

// TestOutageAfterARestart checks that an outage does not repeat a restart that was
// done but whose answer was lost.
func TestOutageAfterARestart(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.requestRestart()
	restarts := 0
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		if spec.RestartRun == "" {
			return live()
		}
		restarts++
		_, _ = live()
		g.memory.SetAvailable(false)
		return driver.Server{}, driver.Errorf(driver.ErrUnavailable, "EOF")
	}
	g.reconcile()
	g.loseEngine()
	g.restoreEngine()
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.True(t, restarts == 1 && g.vm().Status.RestartCount == 1, "restarted %d times, restartCount %d", restarts, g.vm().Status.RestartCount)
}

// TestRestartThatFailsAcrossAChange checks that the run to end is still recorded when
// the spec changes between two tries.
func TestRestartThatFailsAcrossAChange(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	run := g.server().Run
	g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "not now"))
	g.requestRestart()
	g.reconcile()
	g.edit(func(s *api.VirtualMachineSpec) { s.RestartPolicy = api.RestartNever })
	g.reconcile()
	op := g.vm().Status.Operation
	assert.True(t, op != nil && op.Run == run && op.Attempts == 1, "operation %+v", op)
	g.engine.ensure = nil
	g.clock.Step(time.Minute)
	g.reconcile()
	assert.True(t, g.server().Run != run && g.vm().Status.RestartCount == 1, "run %s, restartCount %d", g.server().Run, g.vm().Status.RestartCount)
}

// TestRestartWhoseRunEndsAtOnce checks that a restart is not repeated if its run has ended before the
// status says that the restart was done.
func TestRestartWhoseRunEndsAtOnce(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.requestRestart()
	var powers []driver.Power
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		server, err := live()
		if powers = append(powers, spec.Power); len(powers) == 1 {
			server.State, server.Exit = driver.StateStopped, &driver.Exit{At: g.clock.Now()}
			err = g.memory.Edit("uid-1", func(r *fake.Record) { r.State, r.Exit = server.State, &fake.Exit{At: server.Exit.At} })
		}
		return server, err
	}
	g.reconcile()
	assert.True(t, len(powers) == 2 && g.server().State == driver.StateRunning,
		"the driver was called %d times, and the server is %s", len(powers), g.server().State)
	assert.True(t, !g.vm().Status.RestartedAt.IsZero(), "the status does not say that the restart was done")
}

// TestGracePeriodOfARestart checks that the guest's grace period begins with the stop, not
// with the waits of a restart before the stop.
func TestGracePeriodOfARestart(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: 20 * time.Second}, framework.NewVM("vm"))
	run := g.server().Run
	g.requestRestart()
	tries := 0
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		if tries++; tries == 1 {
			return driver.Server{}, driver.Errorf(driver.ErrRetry, "the image is not available")
		}
		assert.True(t, spec.StopBy.After(g.clock.Now()), "try %d: the guest has %v to shut down", tries, spec.StopBy.Sub(g.clock.Now()))
		return live()
	}
	for _, later := range []time.Duration{time.Hour, 19 * time.Second, 0} {
		g.reconcile()
		g.clock.Step(later)
	}
	g.eventually("the guest has shut down", func() bool {
		g.clock.Step(time.Second)
		return g.server().State == driver.StateStopped
	})
	g.reconcile()
	assert.True(t, g.server().Run != run && g.vm().Status.RestartCount == 1 && tries == 3,
		"run %s, restartCount %d, %d tries", g.server().Run, g.vm().Status.RestartCount, tries)
}

// TestRestartWithAFailingResume checks that a restart is not repeated if the new run
// is not running yet when the next leader observes it, and the first try to resume
// it fails.
func TestRestartWithAFailingResume(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.requestRestart()
	restarts, others := 0, 0
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		if spec.RestartRun != "" {
			restarts++
			_, _ = live()
			_ = g.memory.Edit("uid-1", func(r *fake.Record) { r.State = driver.StatePaused })
			return driver.Server{}, driver.Errorf(driver.ErrRetry, "the answer got lost")
		}
		if others++; others == 1 {
			return driver.Server{}, driver.Errorf(driver.ErrRetry, "locked by a leader that was halted")
		}
		return live()
	}
	for range 5 {
		g.reconcile()
		g.clock.Step(time.Minute)
	}
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.True(t, restarts == 1 && g.vm().Status.RestartCount == 1 && others >= 2,
		"restarted %d times, restartCount %d, %d other calls", restarts, g.vm().Status.RestartCount, others)
}

// TestEngineUnavailableForOneServer checks that an engine that answers, but not
// about this server, does not count as an outage. It is reported, and retried with growing delays.
func TestEngineUnavailableForOneServer(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = failWith(driver.Errorf(driver.ErrUnavailable, "inspect hangs"))
	g.runFor(5 * time.Minute)
	g.wantPhase(api.PhaseFailed, api.ReasonOperationFailed)
	assert.True(t, g.engine.calls <= 10, "%d calls in 5 minutes", g.engine.calls)
}

// TestServerNotFoundByTheDriver covers a server that the list shows but the driver
// does not find.
func TestServerNotFoundByTheDriver(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.setAction(api.ActionStopped)
	g.engine.ensure = failWith(driver.Errorf(driver.ErrNotFound, "no such container"))
	assert.True(t, g.reconcile().RequeueAfter != 0, "it is not requeued")
	op := g.vm().Status.Operation
	assert.True(t, op != nil && op.Attempts == 1, "operation %+v", op)
}

// TestStopDoesNotCreate covers a server that vanishes between the decision and the
// call.
func TestStopDoesNotCreate(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.delete()
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		g.memory.Remove("uid-1")
		return live()
	}
	g.reconcile()
	g.wantNothing()
}

// TestDriverAddedLater checks that a controller that has the driver takes over a VM that
// a controller without the driver refused.
func TestDriverAddedLater(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm").Driver("fake"))
	g.r.Driver, g.r.Drivers, g.r.Inventory = "", []string{"docker"}, nil
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonUnknownDriver)
	g.wantCondition(api.ConditionStalled, metav1.ConditionTrue)
	g.newReconciler()
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	g.wantCondition(api.ConditionStalled, "")
}

// createSecret creates Secret init with one key.
func (g *rig) createSecret(key string) *corev1.Secret {
	g.t.Helper()
	meta := metav1.ObjectMeta{Namespace: "default", Name: "init"}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{key: []byte("#cloud-config")}}
	assert.NoError(g.t, g.api.Create(g.t.Context(), secret))
	return secret
}

// TestDeletedSecret checks that a server can be stopped after its Secret was
// deleted, which is not a change that waits for a restart.
func TestDeletedSecret(t *testing.T) {
	g := newRig(t, fake.Options{})
	secret := g.createSecret("user-data")
	g.create(framework.NewVM("vm").UserDataSecret("init", "user-data"))
	g.reconcile()
	_ = g.api.Delete(t.Context(), secret)
	_ = g.memory.Edit("uid-1", func(r *fake.Record) { r.State = driver.StatePaused })
	g.eventually("the pause by hand is observed", func() bool { return g.server().State == driver.StatePaused })
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	g.wantCondition(api.ConditionRestartRequired, "")
	g.setAction(api.ActionStopped)
	g.reconcile()
	assert.Equal(t, "state", g.server().State, driver.StateStopped)
}

func TestNothingIsDoneWhileUnknown(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.observeOutage()
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.clock.Step(6 * time.Second)
	g.reconcile()
	g.delete()
	g.reconcile()
	assert.True(t, g.engine.calls == 0, "the driver was called %d times", g.engine.calls)
	vm := g.vm()
	assert.True(t, vm != nil && vm.Status.Phase == api.PhaseTerminating, "VM %+v", vm)
	g.wantCondition(api.ConditionDeletionBlocked, metav1.ConditionTrue)
}

// TestCrashAfterIntent covers a restart that was recorded and perhaps done: the
// next controller does not repeat it.
func TestCrashAfterIntent(t *testing.T) {
	for name, happened := range map[string]bool{"before the call": false, "after the call": true} {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			run := g.server().Run
			g.requestRestart()
			g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
				if happened {
					_, _ = live()
				}
				panic("crash")
			}
			crashInCall(t, g)
			g.engine.ensure = nil
			g.startInventory()
			g.newReconciler()
			g.reconcile()
			g.wantPhase(api.PhaseActive, api.ReasonRunning)
			restarts := g.vm().Status.RestartCount
			assert.True(t, g.server().Run != run && restarts == 1, "run %s was %s, restartCount %d", g.server().Run, run, restarts)
			at := g.vm().Status.RestartedAt
			assert.True(t, at != nil && at.Time.Equal(vmtest.T0), "status.restartedAt %v", at)
		})
	}
}

// crashInCall runs the pass's steps up to the driver call, and ends there.
func crashInCall(t *testing.T, g *rig) {
	t.Helper()
	vm, err := g.r.Client.Read(t.Context(), key)
	assert.NoError(t, err)
	known := g.r.gatherFacts(t.Context(), vm, vm)
	p := step{r: g.r, facts: known, decision: g.r.decideFrom(known)}
	assert.Require(t, p.decision.Action.RecordFirst, "no intent")
	assert.NoError(t, p.writeIntent(t.Context()))
	defer func() { _ = recover() }()
	_ = g.r.callDriver(t.Context(), p.vm, p.decision.Action, p.driverTarget(), "")
}

func TestGracefulDeletion(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: 3 * time.Second}, framework.NewVM("vm").GracePeriod(10))
	g.delete()
	g.reconcile()
	g.wantPhase(api.PhaseTerminating, api.ReasonStopping)
	assert.Equal(t, "state", g.server().State, driver.StateStopping)
	g.clock.Step(4 * time.Second)
	g.eventually("it is off", func() bool { return g.server().State == driver.StateStopped })
	g.reconcile()
	g.wantNothing()
}

func TestRetain(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").DeletionPolicy(api.DeletionRetain))
	g.delete()
	g.reconcile()
	assert.Require(t, g.vm() == nil, "still there: %+v", g.vm())
	records := g.memory.Records()
	assert.True(t, len(records) == 1 && records[0].Retained && records[0].State == driver.StateRunning, "records %+v", records)
}

func TestManualChanges(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	first := g.server()
	g.endAs(fake.Exit{Code: 3, Reason: "Error", At: g.clock.Now()})
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonExited)
	g.wantCondition(api.ConditionReady, metav1.ConditionFalse)
	end := g.vm().Status.Server.Terminated
	assert.True(t, end != nil && *end == (api.ServerTerminated{ExitCode: 3, Reason: "Error"}), "the status has the end as %+v", end)

	g.memory.Remove("uid-1")
	g.eventually("the removal is observed", func() bool { return g.inv.Get("uid-1").Answer == inventory.Gone })
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.True(t, g.server().ID != first.ID, "the same server")
	end = g.vm().Status.Server.Terminated
	assert.True(t, end == nil, "during a run the status has an end, %+v", end)
}

// TestSecretDeletedLater checks that a server whose Secret is gone is not started again, and that the
// remains of its last run are still removed.
func TestSecretDeletedLater(t *testing.T) {
	g := newRig(t, fake.Options{})
	secret := g.createSecret("user-data")
	g.create(framework.NewVM("vm").UserDataSecret("init", "user-data"))
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.NoError(t, g.api.Delete(t.Context(), secret))
	var passed []driver.ServerSpec
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		passed = append(passed, spec)
		return live()
	}
	g.crashNow(0)
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonSecretUnavailable)
	assert.True(t, len(passed) == 0, "the driver was called with %+v, and nothing is left to remove", passed)
	g.engine.hasLeftovers.Store(true)
	g.startInventory()
	g.newReconciler()
	g.eventually("something is left", func() bool { return g.server().NeedsEnsure })
	g.reconcile()
	g.clock.Step(time.Minute) // the wait after the failure is over
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonSecretUnavailable)
	assert.True(t, len(passed) == 1 && passed[0].PowerOnly && passed[0].Power == driver.PowerOff && g.server().State == driver.StateStopped,
		"the driver was called with %+v, and the server is %s", passed, g.server().State)
}

// TestSecretDeletedOfRunning checks that a running server gets an Ensure that the driver asks for although the Secret of a
// changed spec is gone, but not the restart that the spec asks for, and that the failure is reported.
func TestSecretDeletedOfRunning(t *testing.T) {
	g := newRig(t, fake.Options{})
	secret := g.createSecret("user-data")
	g.create(framework.NewVM("vm").UserDataSecret("init", "user-data"))
	g.reconcile()
	assert.NoError(t, g.api.Delete(t.Context(), secret))
	g.edit(restartAtT0)
	var passed []driver.ServerSpec
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		passed = append(passed, spec)
		return live()
	}
	g.engine.needs.Store(true)
	g.startInventory()
	g.newReconciler()
	g.eventually("it asks", func() bool { return g.server().NeedsEnsure })
	run := g.server().Run
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonSecretUnavailable)
	assert.True(t, len(passed) == 1 && passed[0].PowerOnly && passed[0].Power == driver.PowerOn && passed[0].RestartRun == "" && g.server().Run == run,
		"the driver was called with %+v, and the server is %+v", passed, g.server())
}

func TestSecretCreatedLater(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").UserDataSecret("init", "user-data"))
	g.wantPhase(api.PhaseFailed, api.ReasonSecretUnavailable)
	secret := g.createSecret("other")
	g.clock.Step(2 * time.Second)
	g.reconcile()
	assert.Equal(t, "message", g.vm().Status.Message, `spec.userData: Secret "init" lacks the key "user-data"`)
	secret.Data["user-data"] = []byte("#cloud-config")
	_ = g.api.Update(t.Context(), secret)
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		assert.Equal(t, "user-data", spec.UserData.Reveal(), "#cloud-config")
		return live()
	}
	g.clock.Step(3 * time.Second)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestFiles checks that a server waits for the Secret of its files, that the files of one that runs are reported as older
// ones once the Secret is gone, and that everything else goes on meanwhile.
func TestFiles(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.r.files = (&filesync.Syncer{
		Clock: g.clock, Live: g.api, Driver: g.engine.Driver.(*fake.Driver), MayAct: func() error { return nil }, Requeue: func(types.NamespacedName) {},
	}).Start(t.Context())
	g.create(framework.NewVM("vm").Spec(func(s *api.VirtualMachineSpec) {
		s.Files = []api.FileMount{{MountPath: "/etc/tls", Secret: &api.SecretFiles{SecretName: "init"}}}
	}))
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonFilesUnavailable)
	assert.Contains(t, "message", g.vm().Status.Message, `spec.files[0], /etc/tls: Secret "init" does not exist`)
	g.wantCondition(api.ConditionFilesCurrent, "")
	secret := g.createSecret("key")
	g.clock.Step(time.Minute)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	waitFor := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		g.eventually("FilesCurrent is "+reason, func() bool {
			g.clock.Step(20 * time.Second)
			g.reconcile()
			c := meta.FindStatusCondition(g.vm().Status.Conditions, api.ConditionFilesCurrent)
			return c != nil && c.Status == status && c.Reason == reason
		})
	}
	waitFor(metav1.ConditionTrue, api.ReasonFilesCurrent)
	assert.NoError(t, g.api.Delete(t.Context(), secret))
	waitFor(metav1.ConditionFalse, api.ReasonFilesUnavailable)
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	leads := g.r.files
	g.r.files = (&filesync.Syncer{ // of the next leader, which may not act yet
		Clock: g.clock, Live: g.api, Driver: leads.Driver, MayAct: func() error { return errors.New("the Lease may be lost") }, Requeue: func(types.NamespacedName) {},
	}).Start(t.Context())
	g.reconcile()
	g.wantCondition(api.ConditionFilesCurrent, metav1.ConditionFalse)
	g.r.files = leads
	g.edit(func(s *api.VirtualMachineSpec) { s.Resource[api.ResourceMemory] = resource.MustParse("6G") })
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.Equal(t, "memory", g.server().Applied.MemoryBytes, int64(6e9))
	g.setAction(api.ActionStopped)
	g.reconcile()
	assert.Equal(t, "state", g.server().State, driver.StateStopped)
	g.wantCondition(api.ConditionFilesCurrent, "")
	g.setAction(api.ActionActive)
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonFilesUnavailable)
}

// TestRestartedAtAtCreation checks that a value that is present at creation causes
// no restart, neither then nor in later passes.
func TestRestartedAtAtCreation(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartedAt(vmtest.T0))
	run := g.server().Run
	at := g.vm().Status.RestartedAt
	assert.True(t, at != nil && at.Time.Equal(vmtest.T0), "status.restartedAt %v", at)
	g.clock.Step(time.Minute)
	g.reconcile()
	assert.True(t, g.server().Run == run && g.vm().Status.RestartCount == 0, "restarted")
}

// TestSuccessWithoutEffect checks that a driver that reports success but changes
// nothing is retried with growing delays, like one that reports a failure.
func TestSuccessWithoutEffect(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.engine.ensure = func(driver.ServerSpec, call) (driver.Server, error) {
		return g.server(), nil
	}
	g.setAction(api.ActionStopped)
	calls := g.engine.calls
	if result := g.reconcile(); result.RequeueAfter != time.Second || g.engine.calls != calls+1 {
		t.Errorf("%d calls, and the next try is in %s: want 1 and 1 s", g.engine.calls-calls, result.RequeueAfter)
	}
	g.wantPhase(api.PhaseActive, api.ReasonOperationFailed)
	op := g.vm().Status.Operation
	assert.True(t, op.LastError == "the fake driver reports success, but the server is still Running", "operation %+v", op)
	g.engine.ensure = nil
	g.clock.Step(time.Second)
	g.reconcile()
	g.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
}

// TestCreationContinuesAfterAFetch checks that a pass continues a creation whose
// image was fetched since.
func TestCreationContinuesAfterAFetch(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.engine.fetching.Store(true)
	g.startInventory()
	g.newReconciler()
	calls := g.engine.calls
	g.reconcile()
	assert.True(t, g.engine.calls == calls+1, "%d calls, want 1", g.engine.calls-calls)
}

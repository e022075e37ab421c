// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

var errConflict = apierrors.NewConflict(api.Resource("virtualmachines"), "vm", nil)

// TestGraceOfAStop checks that a guest that ignores the signal is forced off after
// the grace period, although the write of Drover about the stop does not start a pass.
func TestGraceOfAStop(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: time.Hour}, framework.NewVM("vm").GracePeriod(10))
	g.setAction(api.ActionStopped)
	took := g.runWhile(func() bool { return g.server().State != driver.StateStopped }, time.Minute)
	assert.True(t, took <= 12*time.Second, "stop took %s, want 10 s", took)
}

// TestForcedRestartIsNoCrash checks that a run that Drover ended did not crash,
// whatever its code.
func TestForcedRestartIsNoCrash(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: 3 * time.Second}, framework.NewVM("vm").GracePeriod(10))
	g.requestRestart()
	run := g.server().Run
	g.reconcile()
	g.reasons()
	g.endAs(fake.Exit{Code: 143, At: g.clock.Now()}) // by force, as SIGKILL does after the stop
	g.reconcile()
	assert.True(t, g.server().Run != run, "not restarted")
	got := g.reasons()
	assert.True(t, !slices.Contains(got, api.EventCrashed), "events %v", got)
}

// TestCrashEventSurvivesAConflict checks that the event waits for the status write
// that succeeds.
func TestCrashEventSurvivesAConflict(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.reasons()
	g.crashNow(0)
	g.statusErr = errConflict
	_, _ = g.pass()
	g.statusErr = nil
	g.reconcile()
	got := g.reasons()
	assert.True(t, slices.Contains(got, api.EventCrashed), "events %v, want Crashed", got)
}

// TestStoppedThenActiveWithAFailingStart checks that a run that was ended on
// request is still recorded so while the next start fails.
func TestStoppedThenActiveWithAFailingStart(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: 3 * time.Second}, framework.NewVM("vm").GracePeriod(10).RestartPolicy(api.RestartNever))
	g.clock.Step(time.Minute)
	g.setAction(api.ActionStopped)
	g.reconcile()
	g.setAction(api.ActionActive)
	g.reconcile()
	g.endAs(fake.Exit{Code: 137, At: g.clock.Now()}) // forced
	g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "boom"))
	g.reconcile()
	g.engine.ensure = nil
	g.clock.Step(time.Minute)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestForgedAnnotation checks that changing the annotation before the first status
// write does not yield a second server.
func TestForgedAnnotation(t *testing.T) {
	g := newRig(t, fake.Options{})
	memory, other := g.addDriver()
	g.create(framework.NewVM("vm"))
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		s, err := live()
		vm := g.vm() // a tenant who watches the VM, in those milliseconds
		vm.Annotations[api.AnnotationBound] = "other/" + other.Get("").EngineID + "/uid-1"
		assert.ReportError(t, g.api.Update(context.Background(), vm))
		return s, err
	}
	_, _ = g.pass()
	g.reconcile()
	g.asOther(other, func() { g.reconcile() })
	assert.True(t, len(memory.Records()) == 0 || len(g.memory.Records()) == 0,
		"two servers of one UID: %v and %v; status.binding %v", g.memory.Records(), memory.Records(), g.vm().Status.Binding)
	// The solution that the message names.
	right := "fake/" + g.inv.Get("").EngineID + "/uid-1"
	g.engine.ensure = nil
	vm := g.vm()
	assert.Contains(t, "the message", vm.Status.Message, right)
	vm.Annotations[api.AnnotationBound] = right
	assert.NoError(t, g.api.Update(t.Context(), vm))
	g.asOther(other, func() { g.reconcile() })
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestBlockedDeletionAtRest checks that a deletion that waits for another driver
// writes nothing.
func TestBlockedDeletionAtRest(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	memory, _ := g.addDriver()
	memory.SetAvailable(false)
	vm := g.vm()
	vm.Annotations = nil
	assert.NoError(t, g.api.Update(t.Context(), vm))
	vm = g.vm()
	vm.Status.Binding = nil
	assert.NoError(t, g.api.Status().Update(t.Context(), vm))
	g.delete()
	g.runFor(time.Minute)
	g.wantWrites(0, func() { g.runFor(time.Minute) })
}

// TestFailingQuery checks that a UID that cannot be read does not hide that the
// operation fails, and that its retries back off.
func TestFailingQuery(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.engine.failQueries.Store(true)
	g.engine.ensure = failWith(errors.New("boom"))
	g.setAction(api.ActionStopped)
	calls := g.engine.calls
	g.runFor(10 * time.Minute)
	n := g.engine.calls - calls
	assert.True(t, n <= 12, "%d tries in 10 minutes", n)
	vm := g.vm()
	assert.True(t, vm.Status.ObservedGeneration == vm.Generation,
		"after 10 min of failures the status says %s/%s of generation %d, not %d", vm.Status.Phase, vm.Status.Reason, vm.Status.ObservedGeneration, vm.Generation)
}

// TestAnnotationOfABackup checks that an engine that never answered does not enter
// the status.
func TestAnnotationOfABackup(t *testing.T) {
	g := newRig(t, fake.Options{})
	b := framework.NewVM("vm")
	b.Obj()
	g.create(b)
	vm := g.vm()
	vm.Annotations = map[string]string{api.AnnotationBound: "fake/another-engine"}
	assert.NoError(t, g.api.Update(t.Context(), vm))
	g.reconcile()
	g.replace(func(*api.VirtualMachine) {})
	g.reconcile()
	g.delete()
	g.reconcile()
	assert.True(t, g.vm() == nil, "deletion of a VM that never had a server: %+v", g.vm())
}

// TestCrashBeforeTheFirstStatus checks that a manifest that is replaced before the
// first status write, with another default driver, leads to no second server.
func TestCrashBeforeTheFirstStatus(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.statusErr = errConflict // simulates the crash after Ensure
	_, _ = g.pass()
	g.statusErr = nil
	g.newReconciler()
	g.replace(func(*api.VirtualMachine) {})
	memory, other := g.addDriver()
	g.r.Drivers = []string{"other", "fake"}
	g.asOther(other, func() { g.reconcile() })
	assert.True(t, len(memory.Records()) == 0 || len(g.memory.Records()) == 0, "two servers of one UID")
}

// TestNewLeaderRetriesRefused checks that another leader, which may have
// other settings, tries once. The same leader does not retry.
func TestNewLeaderRetriesRefused(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	allowed := false
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		if !allowed {
			return driver.Server{}, driver.Errorf(driver.ErrInvalid, "image.source: not allowed here")
		}
		return live()
	}
	lead := func(epoch uint64) int {
		g.newReconciler()
		g.r.Epoch = func() uint64 { return epoch }
		before := g.engine.calls
		g.reconcile()
		g.clock.Step(time.Hour)
		g.reconcile()
		return g.engine.calls - before
	}
	g.create(framework.NewVM("vm"))
	for _, epoch := range []uint64{7, 8} {
		calls := lead(epoch)
		assert.True(t, calls == 1, "the leader of epoch %d tried %d times, want once", epoch, calls)
		g.wantPhase(api.PhaseFailed, api.ReasonInvalid)
		g.wantCondition(api.ConditionStalled, metav1.ConditionTrue)
	}
	allowed = true
	lead(9)
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// cases are the contract. Harness.Lacks refers to them by name.
var cases = []struct {
	name string
	run  func(t *testing.T, e *env)
}{
	{"EngineID", testEngineID},

	{"FieldsDeclared", testFieldsDeclared},
	{"FieldsUnsupported", testFieldsUnsupported},
	{"FieldsPending", testFieldsPending},

	{"CreateTwice", testCreateTwice},
	{"CreateFromTwoCallers", testCreateFromTwoCallers},
	{"CreateStopped", testCreateStopped},
	{"CreatePaused", testCreatePaused},
	{"AdoptAfterCrash", testAdoptAfterCrash},
	{"WrongID", testWrongID},
	{"BadUID", testBadUID},
	{"OtherCluster", testOtherCluster},

	{"DeleteGone", testDeleteGone},
	{"DeleteInAnyState", testDeleteInAnyState},
	{"DeleteFromTwoCallers", testDeleteFromTwoCallers},
	{"DeleteWhileCreating", testDeleteWhileCreating},
	{"Retain", testRetain},

	{"StopAndStart", testStopAndStart},
	{"StopForced", testStopForced},
	{"StopWhilePaused", testStopWhilePaused},
	{"PauseAndResume", testPauseAndResume},
	{"RestartOnce", testRestartOnce},
	{"RestartOnceFromTwoCallers", testRestartOnceFromTwoCallers},
	{"RestartForced", testRestartForced},
	{"RestartWhilePaused", testRestartWhilePaused},
	{"Resize", testResize},
	{"ChangeImage", testChangeImage},
	{"ChangeWhileStopped", testChangeWhileStopped},

	{"KilledByHand", testKilledByHand},
	{"StoppedByHand", testStoppedByHand},
	{"StartedByHand", testStartedByHand},
	{"PausedByHand", testPausedByHand},
	{"RemovedByHand", testRemovedByHand},
	{"EndsByItself", testEndsByItself},

	{"ListComplete", testListComplete},
	{"WatchOwnChanges", testWatchOwnChanges},
	{"WatchHandChanges", testWatchHandChanges},
	{"WatchEnds", testWatchEnds},
	{"LoseEngine", testLoseEngine},

	{"Usage", testUsage},
	{"UsageUnderLoad", testUsageUnderLoad},

	{"Cancelled", testCancelled},
	{"CancelledMidway", testCancelledMidway},

	{"FenceOldEpoch", testFenceOldEpoch},
	{"FenceOutlivesServers", testFenceOutlivesServers},
	{"FencePerCluster", testFencePerCluster},
	{"FenceUnderLoad", testFenceUnderLoad},

	{"HostileNames", testHostileNames},
	{"Secrets", testSecrets},
}

// Run runs the contract suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	checkLacks(t, h.Lacks)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if why := h.Lacks[c.name]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			c.run(t, newEnv(t, h))
		})
	}
}

// checkLacks checks that Lacks names existing cases, so that a rename leaves no stale reason.
func checkLacks(t *testing.T, lacks map[string]string) {
	t.Helper()
	known := map[string]bool{}
	for _, c := range cases {
		known[c.name] = true
	}
	for name := range lacks {
		if !known[name] {
			t.Errorf("Harness.Lacks names %q, which is no case of the suite", name)
		}
	}
}

// env is the environment of one case.
type env struct {
	Harness
	clock   clock.Clock
	cluster string
	d       driver.Driver
}

func newEnv(t *testing.T, h Harness) *env {
	t.Helper()
	e := &env{Harness: h, clock: clock.RealClock{}, cluster: string(uuid.NewUUID())}
	if e.Patience == 0 {
		e.Patience = 30 * time.Second
	}
	e.d = e.open(t, e.cluster)
	return e
}

// open connects to the engine as the given cluster, and registers the removal of its
// servers at the end of the case.
func (e *env) open(t *testing.T, cluster string) driver.Driver {
	t.Helper()
	d := e.Open(t, cluster)
	t.Cleanup(func() { e.clean(t, d) })
	return d
}

// clean removes all servers of d's cluster, the retained ones by hand.
func (e *env) clean(t *testing.T, d driver.Driver) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), e.Patience)
	defer cancel()
	e.until(t, "the clean-up after the case", func() error {
		servers, err := d.List(ctx)
		if err != nil {
			return err
		}
		for _, s := range servers {
			e.cleanOne(ctx, t, d, s)
		}
		if len(servers) > 0 {
			return fmt.Errorf("there are still %d servers", len(servers))
		}
		return nil
	})
}

func (e *env) cleanOne(ctx context.Context, t *testing.T, d driver.Driver, s driver.Server) {
	if s.Retained {
		e.Hands.Remove(t, s)
		return
	}
	if err := d.Delete(ctx, driver.Target{UID: s.UID}, false); err != nil && !errors.Is(err, driver.ErrNotFound) {
		t.Logf("cleaning up: %v", err)
	}
}

// need fails the case if the harness lacks something and Lacks gives no reason.
func need(t *testing.T, has bool, what string) {
	t.Helper()
	if !has {
		t.Fatalf("the harness has no %s: fill it in, or give the reason in Lacks under the name of this case", what)
	}
}

// spec returns a server with a new UID that should run.
func (e *env) spec(t *testing.T, name string) driver.ServerSpec {
	t.Helper()
	return e.named(e.Spec(t), "drivertest", name)
}

func (e *env) named(s driver.ServerSpec, namespace, name string) driver.ServerSpec {
	s.Target = driver.Target{UID: newUID(), Epoch: 1}
	s.Namespace, s.Name = namespace, name
	s.Power = driver.PowerOn
	// Off unless a case needs it: the engine's restarter would interfere.
	s.RestartPolicy = driver.RestartNever
	return s
}

// stubborn starts a server whose guest ignores the request to stop.
func (e *env) stubborn(t *testing.T, name string) (driver.ServerSpec, driver.Server) {
	t.Helper()
	need(t, e.StubbornSpec != nil || e.Hands.IgnoreStop != nil, "StubbornSpec or Hands.IgnoreStop")
	spec := e.spec(t, name)
	if e.StubbornSpec != nil {
		spec = e.named(e.StubbornSpec(t), spec.Namespace, name)
	}
	s := e.reach(t, spec, driver.StateRunning)
	if e.Hands.IgnoreStop != nil {
		e.Hands.IgnoreStop(t, s)
	}
	return spec, s
}

func newUID() types.UID { return uuid.NewUUID() }

// in returns the time after a duration from now.
func (e *env) in(d time.Duration) time.Time { return e.clock.Now().Add(d) }

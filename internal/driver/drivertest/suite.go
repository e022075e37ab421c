// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/test/assert"
)

// contractCase is a test of one requirement of the contract.
type contractCase struct {
	name string
	run  func(t *testing.T, e *env)
}

// contractCases, together with streamCases, are the contract. Harness.Skips refers to a case
// by its name.
var contractCases = []contractCase{
	{"EngineID", testEngineID},

	{"FieldsDeclared", testFieldsDeclared},
	{"FieldsUnsupported", testFieldsUnsupported},
	{"FieldsPending", testFieldsPending},
	{"FieldsOfCommand", testFieldsOfCommand},

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
	checkSkips(t, h.Skips)
	for _, c := range append(contractCases, streamCases()...) {
		t.Run(c.name, func(t *testing.T) {
			if why := h.Skips[c.name]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			c.run(t, newEnv(t, h))
		})
	}
}

// checkSkips checks that Skips names only existing cases, so that a case that is renamed is
// not skipped silently or left in Skips.
func checkSkips(t *testing.T, skips map[string]string) {
	t.Helper()
	known := map[string]bool{}
	for _, c := range append(contractCases, streamCases()...) {
		known[c.name] = true
	}
	for name := range skips {
		assert.True(t, known[name], "Harness.Skips names %q, which is not a case of the suite", name)
	}
}

// env has the driver that one case acts on.
type env struct {
	Harness
	clock   clock.Clock
	cluster string
	driver  driver.Driver
}

func newEnv(t *testing.T, h Harness) *env {
	t.Helper()
	e := &env{Harness: h, clock: clock.RealClock{}, cluster: string(uuid.NewUUID())}
	e.driver = e.openDriver(t, e.cluster)
	return e
}

// openDriver connects to the engine for a cluster, and removes that cluster's servers at the
// end of the case.
func (e *env) openDriver(t *testing.T, cluster string) driver.Driver {
	t.Helper()
	d := e.Open(t, cluster)
	t.Cleanup(func() { e.removeServers(t, d) })
	return d
}

// removeServers removes all servers of d's cluster, also the retained ones.
func (e *env) removeServers(t *testing.T, d driver.Driver) {
	ctx := context.WithoutCancel(t.Context())
	assert.Eventually(t, "the clean-up after the case", func(testing.TB) error {
		servers, err := d.List(ctx)
		if err != nil {
			return err
		}
		for _, s := range servers {
			e.removeServer(ctx, t, d, s)
		}
		return assert.ErrorUnless(len(servers) == 0, "there are still %d servers", len(servers))
	})
}

func (e *env) removeServer(ctx context.Context, t *testing.T, d driver.Driver, s driver.Server) {
	if s.Retained {
		e.OutOfBand.Remove(t, s)
		return
	}
	if err := d.Delete(ctx, driver.Target{UID: s.UID}, false); err != nil && !errors.Is(err, driver.ErrNotFound) {
		t.Logf("cleaning up: %v", err)
	}
}

// newSpec returns the spec of a running server with a new UID.
func (e *env) newSpec(t *testing.T, name string) driver.ServerSpec {
	t.Helper()
	return e.nameSpec(e.Spec(t), "drivertest", name)
}

func (e *env) nameSpec(s driver.ServerSpec, namespace, name string) driver.ServerSpec {
	s.Target = driver.Target{UID: newUID(), Epoch: 1}
	s.Namespace, s.Name = namespace, name
	s.Power = driver.PowerOn
	// Restarts by the engine would interfere with cases that are not about them.
	s.RestartPolicy = driver.RestartNever
	return s
}

// startStubborn starts a server whose guest ignores the request to stop.
func (e *env) startStubborn(t *testing.T, name string) (driver.ServerSpec, driver.Server) {
	t.Helper()
	streams.Require(t, e.StubbornSpec != nil || e.OutOfBand.IgnoreStop != nil, "StubbornSpec or OutOfBand.IgnoreStop")
	spec := e.newSpec(t, name)
	if e.StubbornSpec != nil {
		spec = e.nameSpec(e.StubbornSpec(t), spec.Namespace, name)
	}
	s := e.ensureState(t, spec, driver.StateRunning)
	if e.OutOfBand.IgnoreStop != nil {
		e.OutOfBand.IgnoreStop(t, s)
	}
	return spec, s
}

func newUID() types.UID { return uuid.NewUUID() }

func (e *env) fromNow(d time.Duration) time.Time { return e.clock.Now().Add(d) }

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/uuid"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// newFollower returns the follower of a server that has a record alone, and its clock.
func newFollower(t *testing.T) (*follower, *testingclock.FakeClock) {
	t.Helper()
	dir, err := statedir.Open("the folder", t.TempDir(), VMsDir)
	assert.NoError(t, err)
	now := framework.NewFakeClock(time.Unix(0, 0))
	inst := NewHost(Options{Users: &launch.Users{}, Clock: now, Log: logr.Discard()}, dir).InstanceOf(uuid.NewUUID())
	inst.Record = record.Record{ClusterID: "cluster-1", UID: inst.UID, ID: record.NewID(), Namespace: "ns", Name: "a"}
	assert.NoError(t, errors.Join(os.Mkdir(inst.Machine.Path, 0o700), inst.Save()))
	return &follower{inst: inst}, now
}

// TestReleasedBeforeItJoins checks that a machine that is released while it is being connected does not meet others.
func TestReleasedBeforeItJoins(t *testing.T) {
	t.Parallel()
	f, _ := newFollower(t)
	errAsked := errors.New("asked")
	c := control.NewLocalClient("token", func(context.Context) (net.Conn, error) { return nil, errAsked })
	err := f.joinLink(t.Context(), c, nil, nil)
	assert.True(t, err != nil && !errors.Is(err, errReleased), "a server that is not released: %v, want that its supervisor is asked", err)
	f.inst.Retained = true
	assert.NoError(t, f.inst.Save())
	assert.ErrorIs(t, "a released server", f.joinLink(t.Context(), c, nil, nil), errReleased)
}

// TestOtherEgressIsReported checks that a change is reported again and again while what this process allows is not what
// is recorded, that the record stays as it is, and that nothing is reported of a server that was released.
func TestOtherEgressIsReported(t *testing.T) {
	t.Parallel()
	f, now := newFollower(t)
	inst := f.inst
	inst.Egress = control.Egress{Deny: true} // what a process allows that knows no network
	assert.NoError(t, inst.Save())
	before := framework.ReadFile(t, inst.Machine.File(RecordFile))
	var changes atomic.Int64
	f.onChange = func() { changes.Add(1) }
	go f.watchEgress(t.Context())
	checks := func(n int) {
		t.Helper()
		for range n {
			assert.Eventually(t, "the follower waits", func(testing.TB) error {
				return assert.ErrorUnless(now.HasWaiters(), "it does not")
			})
			now.Step(egressEvery)
		}
	}
	checks(3)
	assert.Equal(t, "changes were reported of an egress that is recorded", changes.Load(), 0)
	inst.Egress.Deny = false
	assert.NoError(t, inst.Save())
	checks(3)
	n := changes.Load()
	assert.True(t, n >= 2, "%d changes were reported of another egress, want one each time", n)
	inst.Egress.Deny = true
	if assert.NoError(t, inst.Save()); framework.ReadFile(t, inst.Machine.File(RecordFile)) != before {
		t.Error("the record was changed")
	}
	inst.Egress.Deny, inst.Retained = false, true
	assert.NoError(t, inst.Save())
	checks(1) // as before
	last := changes.Load()
	if checks(3); changes.Load() != last {
		t.Error("changes were reported of a released server")
	}
}

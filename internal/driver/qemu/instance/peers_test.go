// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
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
	inst := NewHost(Config{Users: &launch.Users{}, Clock: now, Log: logr.Discard()}, dir).InstanceOf(uuid.NewUUID())
	inst.Record = record.Record{Format: record.Format, ClusterID: "cluster-1", UID: inst.UID, ID: NewID(), Namespace: "ns", Name: "a"}
	assert.NoError(t, errors.Join(os.Mkdir(inst.Path, 0o700), inst.Save()))
	return &follower{inst: inst}, now
}

// TestReleasedBeforeItJoins checks that a machine that is released while it is being connected does not meet others.
func TestReleasedBeforeItJoins(t *testing.T) {
	t.Parallel()
	f, _ := newFollower(t)
	errAsked := errors.New("asked")
	c := control.NewLocalClient("token", func(context.Context) (net.Conn, error) { return nil, errAsked })
	if err := f.join(t.Context(), c, nil, nil); err == nil || errors.Is(err, errReleased) {
		t.Errorf("a server that is not released: %v, want that its supervisor is asked", err)
	}
	f.inst.Retained = true
	assert.NoError(t, f.inst.Save())
	assert.ErrorIs(t, "a released server", f.join(t.Context(), c, nil, nil), errReleased)
}

// TestSetEgressAgain checks that SetEgress is called until it succeeds, and once more when the egress changes.
func TestSetEgressAgain(t *testing.T) {
	t.Parallel()
	f, now := newFollower(t)
	var calls, taken, denies atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e control.Egress
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil || calls.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		taken.Add(1)
		if e.Deny {
			denies.Add(1)
		}
	}))
	t.Cleanup(server.Close)
	c := control.NewLocalClient("token", func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	var asked atomic.Int64
	var isDenied atomic.Bool
	go f.setEgress(t.Context(), c, func() (control.Egress, error) {
		asked.Add(1)
		return control.Egress{Deny: isDenied.Load()}, nil
	})
	wantTaken := func(count, denied int64) {
		t.Helper()
		enough := asked.Load() + 5 // in each round SetEgress may be called
		assert.Eventually(t, "it is asked what is allowed", func(testing.TB) error {
			now.Step(egressEvery)
			if asked.Load() < enough {
				return errors.New("it is not yet")
			}
			return nil
		})
		if taken.Load() != count || denies.Load() != denied {
			t.Errorf("the supervisor has taken %d, %d of them denials, want %d and %d", taken.Load(), denies.Load(), count, denied)
		}
	}
	wantTaken(1, 0)
	isDenied.Store(true)
	wantTaken(2, 1)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

var errRemovalUnderWay = errors.New("the removal is under way: Delete returned nil")

// WaitForClose waits until Watch has closed its channel.
func WaitForClose(t testing.TB, events <-chan types.UID, reason string) {
	t.Helper()
	assert.Eventually(t, "Watch closes, since "+reason, func(testing.TB) error {
		for {
			select {
			case _, open := <-events:
				if !open {
					return nil
				}
			default:
				return errors.New("the channel is still open")
			}
		}
	})
}

// ensureState repeats Ensure, as the controller does, until the server is in a
// state.
func (e *env) ensureState(t *testing.T, spec driver.ServerSpec, want driver.State) driver.Server {
	t.Helper()
	return e.ensureUntil(t, e.driver, spec, string(want), func(s driver.Server) bool { return s.State == want })
}

// ensureNewRun repeats Ensure until the server is in a run other than old.
func (e *env) ensureNewRun(t *testing.T, spec driver.ServerSpec, old string) driver.Server {
	t.Helper()
	return e.ensureUntil(t, e.driver, spec, "a new run", func(s driver.Server) bool {
		return s.State == driver.StateRunning && s.Run != old
	})
}

func (e *env) ensureUntil(t *testing.T, d driver.Driver, spec driver.ServerSpec, condition string, isReached func(driver.Server) bool) driver.Server {
	t.Helper()
	var s driver.Server
	assert.Eventually(t, "Ensure to reach "+condition, func(testing.TB) error {
		var err error
		s, err = d.Ensure(t.Context(), spec)
		switch {
		case isTransient(err):
			return err
		case err != nil:
			t.Fatalf("Ensure: %v", err)
		case s.Err != nil: // for example a server that does not answer in time on a busy host
			return fmt.Errorf("the server has the error %w", s.Err)
		case !isReached(s):
			return fmt.Errorf("the server is %s", describeServers(s))
		}
		return nil
	})
	return s
}

// stopGrace is the time until a stop is forced, in cases where the guest ignores the request.
const stopGrace = time.Second

// forceSoon returns spec with a stop that is forced after stopGrace.
func (e *env) forceSoon(spec driver.ServerSpec) driver.ServerSpec {
	spec.StopBy = e.fromNow(stopGrace)
	return spec
}

// stopSpec returns spec with a stop that is forced too late for a test to see.
func (e *env) stopSpec(spec driver.ServerSpec) driver.ServerSpec {
	spec.Power = driver.PowerOff
	spec.StopBy = e.fromNow(time.Hour)
	return spec
}

func withPower(spec driver.ServerSpec, p driver.Power) driver.ServerSpec {
	spec.Power = p
	return spec
}

// restartSpec returns spec with a restart that ends the given run.
func (e *env) restartSpec(spec driver.ServerSpec, run string, stopBy time.Time) driver.ServerSpec {
	spec.RestartRun = run
	spec.StopBy = stopBy
	return spec
}

// listOne returns the only server of a UID.
func listOne(t *testing.T, d driver.Driver, uid types.UID) driver.Server {
	t.Helper()
	servers := listServers(t, d, uid)
	assert.Require(t, len(servers) == 1, "List(%s): got %d servers, want 1: %s", uid, len(servers), describeServers(servers...))
	return servers[0]
}

func listServers(t *testing.T, d driver.Driver, uids ...types.UID) []driver.Server {
	t.Helper()
	var servers []driver.Server
	wantErrorKind(t, "List", nil, func() (err error) {
		servers, err = d.List(t.Context(), uids...)
		return err
	})
	return servers
}

func usageOf(t *testing.T, d driver.Driver, uids ...types.UID) (samples []driver.Usage) {
	t.Helper()
	wantErrorKind(t, "Usage", nil, func() (err error) {
		samples, err = d.Usage(t.Context(), uids...)
		return err
	})
	return samples
}

// waitForServer waits until List returns the server in the expected condition.
func (e *env) waitForServer(t *testing.T, uid types.UID, condition string, isReached func(driver.Server) bool) driver.Server {
	t.Helper()
	var last driver.Server
	assert.Eventually(t, "List to show "+condition, func(testing.TB) error {
		servers := listServers(t, e.driver, uid)
		if len(servers) != 1 || !isReached(servers[0]) {
			return fmt.Errorf("the list has %s", describeServers(servers...))
		}
		last = servers[0]
		return nil
	})
	return last
}

// ensureOnce calls Ensure until it succeeds, whatever state the server is in.
func ensureOnce(t *testing.T, d driver.Driver, spec driver.ServerSpec) (s driver.Server) {
	t.Helper()
	wantErrorKind(t, "Ensure", nil, func() (err error) {
		s, err = d.Ensure(t.Context(), spec)
		return err
	})
	return s
}

// deleteOnce calls Delete until it succeeds. A retry may return ErrNotFound, if the failed call has removed the server.
func deleteOnce(t *testing.T, d driver.Driver, target driver.Target, retain bool) {
	t.Helper()
	isRetry := false
	wantErrorKind(t, "Delete", nil, func() error {
		err := d.Delete(t.Context(), target, retain)
		if isRetry && errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		isRetry = true
		return err
	})
}

// deleteUntilGone repeats Delete until it returns ErrNotFound.
func (e *env) deleteUntilGone(t *testing.T, d driver.Driver, uid types.UID) {
	t.Helper()
	assert.Eventually(t, "Delete to report that nothing is left", func(testing.TB) error {
		err := d.Delete(t.Context(), driver.Target{UID: uid}, false)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		assert.Require(t, err == nil || isTransient(err), "Delete: %v", err)
		return cmp.Or(err, errRemovalUnderWay)
	})
	left := listServers(t, d, uid)
	assert.Require(t, len(left) == 0, "Delete reported that nothing is left, but List shows %s", describeServers(left...))
}

// wantSameRun checks that a server has the same ID, run and state as before.
func wantSameRun(t *testing.T, got, want driver.Server) {
	t.Helper()
	assert.True(t, got.ID == want.ID && got.Run == want.Run && got.State == want.State,
		"got the server %s, want it unchanged: %s", describeServers(got), describeServers(want))
}

func describeServers(servers ...driver.Server) string {
	if len(servers) == 0 {
		return "no server"
	}
	var text strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&text, "[%s/%s %s id=%s run=%s retained=%v exit=%+v doing=%q err=%v]",
			s.Namespace, s.Name, s.State, s.ID, s.Run, s.Retained, s.Exit, s.Progress, s.Err)
	}
	return text.String()
}

func cancelledContext(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx, cancel
}

// interruptEnsure calls Ensure with a context that ends after a timeout.
func (e *env) interruptEnsure(t *testing.T, spec driver.ServerSpec, timeout time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err := e.driver.Ensure(ctx, spec)
	assert.Require(t, err == nil || !isFinal(err), "Ensure with a timeout of %v: got the final error %v", timeout, err)
}

// runParallel calls f(0) to f(n-1) concurrently and waits for all.
func runParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-gate
			f(i)
		})
	}
	close(gate)
	all.Wait()
}

// stringSet is a set of texts that many goroutines add to. It ignores the empty text.
type stringSet struct {
	mu    sync.Mutex
	texts map[string]bool
}

func newStringSet() *stringSet { return &stringSet{texts: map[string]bool{}} }

func (s *stringSet) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text != "" {
		s.texts[text] = true
	}
}

func (s *stringSet) values() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for text := range s.texts {
		all = append(all, text)
	}
	return all
}

// isTransient reports whether the controller retries after an error. A late answer of a busy engine is one such error.
func isTransient(err error) bool {
	return errors.Is(err, driver.ErrRetry) || errors.Is(err, driver.ErrUnavailable)
}

// wantErrorKind makes a call and checks the kind of its error, which is nil for success, and that the error has all texts.
func wantErrorKind(t *testing.T, subject string, kind error, call func() error, texts ...string) {
	t.Helper()
	assert.ErrorIs(t, subject, errorAfterRetries(t, subject, kind, call), kind, texts...)
}

// errorAfterRetries returns the error of a call. It repeats the call after transient errors, unless they have the wanted kind.
func errorAfterRetries(t *testing.T, subject string, kind error, call func() error) (err error) {
	t.Helper()
	assert.Eventually(t, subject, func(testing.TB) error {
		if err = call(); isTransient(err) && !errors.Is(err, kind) {
			return err
		}
		return nil
	})
	return err
}

func isFinal(err error) bool {
	return errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUnsupported)
}

func inState(state driver.State) func(driver.Server) bool {
	return func(s driver.Server) bool { return s.State == state }
}

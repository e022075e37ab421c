// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

func (w *world) newEphemeral(t *testing.T, name string) *server {
	t.Helper()
	s := w.newServer(t, name)
	s.Ephemeral, s.RootDiskBytes, s.StorageClassName = true, 0, nil
	return s
}

// isListed reports whether a complete list has a server.
func (s *server) isListed(t *testing.T) (bool, error) {
	t.Helper()
	all, err := s.d.List(t.Context())
	return slices.ContainsFunc(all, func(have driver.Server) bool { return have.UID == s.UID }), err
}

// TestListHasOwnWrites checks that lists from informers have the objects that were just written, however
// far the informers are behind.
func TestListHasOwnWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	watched := w.open(t)
	assert.NoError(t, assert.ErrorOf(watched.Watch(t.Context())))
	var uids []types.UID
	for n := range 10 {
		s := w.newEphemeral(t, fmt.Sprintf("web-%d", n))
		s.d = watched
		assert.NoError(t, assert.ErrorOf(s.ensure(t)))
		listed, err := s.isListed(t)
		assert.True(t, listed && err == nil, "%s is in the list: %t, %v", s.Name, listed, err)
		uids = append(uids, s.UID)
		named, err := watched.List(t.Context(), uids...)
		assert.True(t, err == nil && len(named) == len(uids), "the list of %d has %d: %v", len(uids), len(named), err)
	}
}

// TestListIsLiveWhereInformersAreBehind has informers that never get anything. A list is live then,
// and fails where the API server cannot be reached.
func TestListIsLiveWhereInformersAreBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := shared.NewAPIProxy(t)
	config, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig)
	assert.NoError(t, err)
	s := w.newEphemeral(t, "web")
	s.d = openWithin(t, config, clusterID, 10*time.Second)
	s.reach(t, driver.StateRunning)
	informers, err := s.d.reader.NewInformers(func(error) {})
	assert.NoError(t, err)
	s.d.reader.Watched.Store(informers)
	for range 2 { // the first is live anyway
		if listed, err := s.isListed(t); !listed || err != nil {
			t.Errorf("it is in the list: %t, %v", listed, err)
		}
	}
	proxy.Disconnect()
	listed, err := s.isListed(t)
	assert.True(t, err != nil, "it is in the list: %t, and the API server cannot be reached", listed)
	proxy.Restore()
	s.deleteAll(t)
}

// roundTripper is a function that answers requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// intercept returns a connection to the shared cluster that calls before each request, and after each
// one that was answered.
func (w *world) intercept(before func(*http.Request), after func(*http.Request, *http.Response)) *rest.Config {
	config := rest.CopyConfig(shared.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if before != nil {
				before(r)
			}
			response, err := next.RoundTrip(r)
			if err == nil && after != nil {
				after(r, response)
			}
			return response, err
		})
	})
	return config
}

// requests are how often something was requested in a world, or listed in all namespaces, as in
// "LIST pods". Writes that were refused are left out.
type requests struct {
	mu   sync.Mutex
	made map[string]int
}

// countRequests returns a connection to the shared cluster whose requests are counted.
func (w *world) countRequests() (*rest.Config, *requests) {
	c := &requests{made: map[string]int{}}
	return w.intercept(nil, func(r *http.Request, response *http.Response) {
		verb, path := r.Method, strings.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis"), "/api"), "/v1/")
		parts := strings.Split(path[len(path)-1], "/") // RESOURCE, or namespaces/NAMESPACE/RESOURCE/NAME
		if parts[0] == "namespaces" && len(parts) > 2 {
			if parts[1] != w.namespace {
				return
			}
			parts = parts[2:]
		} else if len(parts) > 1 {
			return
		}
		switch {
		case verb != http.MethodGet && response.StatusCode >= http.StatusBadRequest, r.URL.Query().Has("watch"):
			return
		case verb == http.MethodGet && len(parts) == 1:
			verb = "LIST"
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.made[verb+" "+parts[0]]++
	}), c
}

// all returns what was requested since the last call.
func (c *requests) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.made
	c.made = map[string]int{}
	return made
}

// wantRequests checks what a call requests.
func (c *requests) wantRequests(t *testing.T, name string, call func() error, want map[string]int) {
	t.Helper()
	c.all()
	err := call()
	assert.Require(t, err == nil, "%s: %v", name, err)
	got := c.all()
	assert.True(t, maps.Equal(got, want), "%s requests %v, want %v", name, got, want)
}

// watchAs has a server's driver connect by config, know its VirtualMachine, and follow all servers.
func (s *server) watchAs(t *testing.T, config *rest.Config) {
	t.Helper()
	s.d = openAs(t, config, clusterID)
	s.d.reader.Owner = s.owner
	assert.NoError(t, assert.ErrorOf(s.d.Watch(t.Context())))
}

// wantListed returns a call that lists the server alone.
func (s *server) wantListed(t testing.TB, want int) func() error {
	return func() error {
		all, err := s.d.List(t.Context(), s.UID)
		if err == nil && len(all) != want {
			err = fmt.Errorf("the list has %d servers, want %d", len(all), want)
		}
		return err
	}
}

// TestReadsOfOne checks what is read live about one server: its pod, and its PVCs where the pod does not
// prove that it is there.
func TestReadsOfOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config, count := w.countRequests()
	s := w.newServer(t, "web")
	s.BlockEviction = true
	s.watchAs(t, config)
	count.wantRequests(t, "a list of a server that is not there", s.wantListed(t, 0), map[string]int{"GET pods": 1, "LIST persistentvolumeclaims": 1})
	s.reach(t, driver.StateRunning)
	_, err := s.d.List(t.Context())
	assert.True(t, err == nil && count.all()["LIST poddisruptionbudgets"] == 1, "a complete list does not look at PodDisruptionBudgets once: %v", err)
	assert.Eventually(t, "a list of a server that runs takes its PVC from the informers", func(t testing.TB) error {
		count.all()
		if err := s.wantListed(t, 1)(); err != nil {
			return err
		}
		got := count.all()
		return assert.ErrorUnless(maps.Equal(got, map[string]int{"GET pods": 1}), "it requests %v", got)
	})
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.waitPodGone(t)
	count.wantRequests(t, "a list of a server that is off", s.wantListed(t, 1), map[string]int{"GET pods": 1, "LIST persistentvolumeclaims": 1})
	s.deleteAll(t)

	s = w.newEphemeral(t, "ephemeral")
	s.watchAs(t, config)
	s.reach(t, driver.StateRunning)
	count.wantRequests(t, "a list of an ephemeral server", s.wantListed(t, 1), map[string]int{"GET pods": 1})
	s.deleteAll(t)
	count.wantRequests(t, "a list of one that is gone", s.wantListed(t, 0), map[string]int{"GET pods": 1, "LIST persistentvolumeclaims": 1})
}

// TestReadsOfUnknown checks that a refresh of a UID without a VirtualMachine costs no request, whether there are
// objects of it or not, and that any other list of it is live: what that misses is gone.
func TestReadsOfUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config, count := w.countRequests()
	s := w.newEphemeral(t, "web")
	s.watchAs(t, config)
	s.reach(t, driver.StateRunning)
	s.d.reader.Owner = func(types.UID) (driver.Owner, bool) { return driver.Owner{}, false }
	live := map[string]int{"LIST pods": 1, "LIST persistentvolumeclaims": 1}
	for uid, want := range map[types.UID]int{s.UID: 1, "made-up": 0} {
		list := func(ctx context.Context) func() error {
			return func() error {
				all, err := s.d.List(ctx, uid)
				if err == nil && len(all) != want {
					err = fmt.Errorf("the list has %d servers, want %d", len(all), want)
				}
				return err
			}
		}
		count.wantRequests(t, "a refresh", list(driver.ForRefresh(t.Context())), map[string]int{})
		count.wantRequests(t, "a list", list(t.Context()), live)
	}
	s.deleteAll(t)
}

// TestReadsOfReleased checks that released pods are known from the informers, and that one is read live
// before it loses its finalizer.
func TestReadsOfReleased(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	config, count := w.countRequests()
	s := w.newRetained(t, "web")
	s.d = openAs(t, config, w.cluster)
	assert.NoError(t, assert.ErrorOf(s.d.Watch(t.Context())))
	release := func() error { return s.d.ReleaseEnded(t.Context()) }
	count.wantRequests(t, "a look at a released pod that runs", release, map[string]int{})
	assert.NoError(t, w.kubelet.Finish(t.Context(), s.pod(t)))
	count.all()
	assert.Eventually(t, "the pod has lost its finalizer", func(t testing.TB) error {
		s.release(t)
		if held, err := s.holds(t); held || err != nil {
			return errors.Join(errors.New("it is held"), err)
		}
		return nil
	})
	got, want := count.all(), map[string]int{"GET pods": 1, "GET persistentvolumeclaims": 1, "PUT persistentvolumeclaims": 1, "PUT pods": 1}
	assert.True(t, maps.Equal(got, want), "the release requests %v, want %v", got, want)
}

// TestServerThatCannotBeRead checks that an API server which fails to return one pod fails the list of that
// server alone: a complete list has it, and the watch stays open.
func TestServerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	broken, other := w.newServer(t, "broken"), w.newServer(t, "other")
	broken.reach(t, driver.StateRunning)
	other.reach(t, driver.StateRunning)
	var fails atomic.Bool
	d := openAs(t, w.intercept(nil, func(r *http.Request, response *http.Response) {
		if fails.Load() && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods/"+broken.base()) {
			response.StatusCode = http.StatusInternalServerError
		}
	}), w.cluster)
	d.reader.Owner = broken.owner
	events, err := d.Watch(t.Context())
	assert.NoError(t, err)
	fails.Store(true)
	all, err := d.List(t.Context(), broken.UID)
	assert.True(t, err != nil && !errors.Is(err, driver.ErrNotFound), "the list of the server is %+v, %v", all, err)
	assert.NoError(t, w.kubelet.Finish(t.Context(), broken.pod(t)))
	assert.Eventually(t, "a complete list has its end", func(t testing.TB) error {
		all, err := d.List(t.Context())
		if err == nil && (len(all) != 2 || !slices.ContainsFunc(all, func(s driver.Server) bool { return s.UID == broken.UID && s.State == driver.StateStopped })) {
			err = fmt.Errorf("it is %+v", all)
		}
		return err
	})
	assert.NoError(t, w.kubelet.Finish(t.Context(), other.pod(t)))
	assert.Eventually(t, "the watch names the other server", func(testing.TB) error {
		select {
		case uid, open := <-events:
			if uid == other.UID {
				return nil
			}
			return fmt.Errorf("it names %q, and is open: %t", uid, open)
		default:
			return errors.New("it names nothing")
		}
	})
	broken.deleteAll(t)
	other.deleteAll(t)
}

// TestWatchSaysWhatIsRefused checks that a watch ends with the answer of the API server if the first list is
// refused, and does not wait as long as a call may take. The cause is the same each time, so that it is logged once.
func TestWatchSaysWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	for kind, refused := range map[string][]string{
		"*v1.Pod": {"pods", "persistentvolumeclaims"}, "*v1.PersistentVolumeClaim": {"persistentvolumeclaims"},
	} {
		d := openAs(t, w.intercept(nil, func(r *http.Request, response *http.Response) {
			if slices.Contains(refused, path.Base(r.URL.Path)) {
				_ = response.Body.Close()
				response.StatusCode, response.Body = http.StatusForbidden, http.NoBody
			}
		}), w.cluster)
		for range 5 {
			err := assert.ErrorOf(d.Watch(t.Context()))
			assert.ErrorIs(t, kind, err, driver.ErrUnavailable)
			assert.True(t, apierrors.IsForbidden(err), "%s: the error is %v, want the answer of the API server", kind, err)
			assert.ErrorSays(t, kind, err, "the cluster did not list its pods: failed to list "+kind)
		}
	}
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/drover-controller/apiserver"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/assert"
)

// TestStopBeforeTheCacheIsFilled checks that a process ends although the API has not
// answered since its start. controller-runtime's manager does not end then.
func TestStopBeforeTheCacheIsFilled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var asked, reachable atomic.Bool
	mgr := managerWithoutAPI(t, &asked, &reachable)
	go func() { ended <- startManager(ctx, mgr, time.Second) }()
	assert.Eventually(t, "the manager fills its cache", func(testing.TB) error {
		return assert.ErrorUnless(asked.Load(), "it has asked for nothing")
	})
	cancel()
	assert.Eventually(t, "it ends", func(testing.TB) error {
		select {
		case err := <-ended:
			assert.ErrorIs(t, "the end", err, errNotStopped)
			return nil
		default:
			return errors.New("it runs")
		}
	})
	reachable.Store(true) // which ends the manager too
}

// managerWithoutAPI returns a manager whose lists fail until the API is reachable, and which notes
// that it has asked for one.
func managerWithoutAPI(t *testing.T, asked, reachable *atomic.Bool) ctrl.Manager {
	t.Helper()
	scheme := runtime.NewScheme()
	assert.NoError(t, api.AddToScheme(scheme))
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(api.SchemeGroupVersion.WithKind("VirtualMachine"), meta.RESTScopeNamespace)
	unreachable := &toolscache.ListWatch{
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			asked.Store(true)
			return nil, errors.New("connection refused")
		},
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			asked.Store(true)
			if reachable.Load() {
				return &api.VirtualMachineList{}, nil
			}
			return nil, errors.New("connection refused")
		},
	}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "nowhere"}, ctrl.Options{
		Scheme: scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Cache: cache.Options{NewInformer: func(_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(unreachable, object, resync, by)
		}},
	})
	if err == nil {
		_, err = mgr.GetCache().GetInformer(t.Context(), &api.VirtualMachine{}, cache.BlockUntilSynced(false))
	}
	assert.NoError(t, err)
	return mgr
}

// TestApprovals checks that only the ConfigMap of kube-system approves anything, and that a
// controller of an older role goes on without.
func TestApprovals(t *testing.T) {
	t.Parallel()
	approvals := func(namespace string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: streams.OrphanApprovalsName}, Data: map[string]string{"u1": "s1", "u2": "s2"}}
	}
	for name, tc := range map[string]struct {
		object  *corev1.ConfigMap
		refused error
		want    map[driver.Target]bool
	}{
		"none":              {nil, nil, nil},
		"approved":          {approvals("kube-system"), nil, map[driver.Target]bool{{UID: "u1", ID: "s1"}: true, {UID: "u2", ID: "s2"}: true}},
		"another namespace": {approvals("default"), nil, nil},
		"no right":          {approvals("kube-system"), apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, streams.OrphanApprovalsName, nil), nil},
		"no answer":         {approvals("kube-system"), errors.New("timeout"), nil},
	} {
		b := clientfake.NewClientBuilder()
		if tc.object != nil {
			b = b.WithObjects(tc.object)
		}
		reader := b.WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
				if tc.refused != nil {
					return tc.refused
				}
				return c.Get(ctx, key, object, opts...)
			},
		}).Build()
		got, err := apiserver.ApprovedOrphans(reader)(t.Context())
		assert.True(t, maps.Equal(got, tc.want) && (err != nil) == (name == "no answer"), "%s: got %v, %v, want %v", name, got, err, tc.want)
	}
}

// TestLostElectionSaysWhy checks that a manager's end names the last failed request about the Lease.
func TestLostElectionSaysWhy(t *testing.T) {
	t.Parallel()
	clients := kubefake.NewClientset()
	failure := apierrors.NewInternalError(errors.New("failed calling webhook \"check.example.com\""))
	clients.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, failure })
	lock := leader.NewLock(leader.Options{
		Leases: clients.CoordinationV1().Leases("default"), Namespace: "default", Name: "it", Identity: "me",
		Settings: leader.DefaultSettings(), Clock: clock.RealClock{}, Boot: leader.BootTime, Log: logr.Discard(),
	})
	lost := errors.New("leader election lost")
	if err := withLastTry(t.Context(), lost, lock); err != lost { //nolint:errorlint // the very same
		t.Errorf("before any request the error is %v", err)
	}
	_, _, err := lock.Get(t.Context())
	assert.ErrorIs(t, "a request", err, failure)
	err = withLastTry(t.Context(), lost, lock)
	assert.ErrorIs(t, "the end", err, failure)
	assert.ErrorSays(t, "the end", err, "leader election lost: the last request about the Lease default/it failed: ")
	assert.NoError(t, withLastTry(t.Context(), nil, lock))
}

// lineRecorder is a log whose lines are kept.
type lineRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (l *lineRecorder) logger() logr.Logger {
	return funcr.New(func(_, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, line)
	}, funcr.Options{})
}

// countOf returns how many lines contain a text.
func (l *lineRecorder) countOf(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// TestWaitIsAnnouncedOnce checks that a start says once what it waits for, and nothing if that is quick.
func TestWaitIsAnnouncedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lineRecorder
		apiserver.AnnounceWait(log.logger(), "quick")()
		done := apiserver.AnnounceWait(log.logger(), "slow", "hint", "look")
		time.Sleep(time.Minute)
		done()
		assert.True(t, log.countOf("quick") == 0 && log.countOf(`"msg"="slow" "hint"="look"`) == 1, "logged %q, want one line about what is slow", log.lines)
	})
}

// TestStartLogsAnErrorOnce checks that libraries which try again and again log an error once.
func TestStartLogsAnErrorOnce(t *testing.T) {
	t.Parallel()
	var log lineRecorder
	ctx := useLog(t.Context(), log.logger())
	for range 10 {
		klog.FromContext(ctx).Error(errors.New("refused"), "client-go")
		ctrl.Log.Error(errors.New("refused"), "controller-runtime")
	}
	for _, library := range []string{"client-go", "controller-runtime"} {
		got := log.countOf(library)
		assert.True(t, got == 1, "%s has logged %d lines, want 1", library, got)
	}
}

// TestDiscoveryIsBounded checks that an API server which never answers cannot hold up a start.
func TestDiscoveryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mapper, err := newMapper(&rest.Config{Host: "http://api"}, &http.Client{Transport: silent{}})
		assert.NoError(t, err)
		began := time.Now()
		_, err = mapper.RESTMapping(schema.GroupKind{Group: api.GroupName, Kind: "VirtualMachine"})
		assert.True(t, err != nil && time.Since(began) <= apiserver.RequestTimeout,
			"it ended after %s with %v, want an error within %s", time.Since(began), err, apiserver.RequestTimeout)
	})
}

// silent is an API server that never answers.
type silent struct{}

// RoundTrip implements http.RoundTripper.
func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

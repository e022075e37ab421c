// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
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
		if !asked.Load() {
			return errors.New("it has asked for nothing")
		}
		return nil
	})
	cancel()
	assert.Eventually(t, "it ends", func(testing.TB) error {
		select {
		case err := <-ended:
			if !errors.Is(err, errNotStopped) {
				t.Errorf("it ends with %v, want %v", err, errNotStopped)
			}
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

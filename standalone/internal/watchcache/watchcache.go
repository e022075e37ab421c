// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watchcache lets kube-apiserver's watch caches of custom resources become small again
// after many events. Start with Options, which has a kind's storage created by a Trimmer.
package watchcache

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// kube-apiserver's watch cache keeps the last events of a kind, each with a whole
// object, for watchers that reconnect. It doubles its capacity, up to 102,400, while
// the events are younger than 75 s. It halves it when an event comes, the cache is
// full and most of it is older. So after a burst that no event follows, the cache keeps
// all of it: 600 MB after 10,000 VMs. Here markers replace the missing events. A marker
// is an event of an object that no key of the API can name, so neither a list nor a
// watch shows it.
const (
	// countPeriod is how often events are counted. After calmPeriods with few events, all
	// others are older than the cache intends to keep them.
	countPeriod  = calmDuration / calmPeriods
	calmPeriods  = 4
	calmDuration = cacher.DefaultEventFreshDuration + 5*time.Second
	// maxCalmEvents is how many events in a period still count as calm.
	maxCalmEvents = 25
	// minTrimEvents is the number of events below which a cache is not trimmed.
	minTrimEvents = 1000
	// halvings is enough to take the largest cache to the smallest, which is for 100
	// events.
	halvings = 16
	// markerBatch markers are followed by markerPause, so that no watcher is overrun.
	markerBatch = 100
	markerPause = 25 * time.Millisecond
	// markerKey is outside the prefix of every resource.
	markerKey = "/drover/marker"
)

// Trimmer makes watch caches drop old events in calm periods.
type Trimmer struct {
	Clock clock.WithTicker
	// Trimmed is called when a cache has become small.
	Trimmed func()
}

// Options has a kind's storage created by a Trimmer.
type Options struct {
	generic.RESTOptionsGetter
	Trimmer Trimmer
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o Options) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	opts.Decorator = o.Trimmer.newStorage
	return opts, err
}

// newStorage is registry.StorageWithCacher with a Trimmer below the cache.
func (t Trimmer) newStorage(
	config *storagebackend.ConfigForResource, prefix string,
	keyOf func(runtime.Object) (string, error), newObject, newList func() runtime.Object,
	attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	raw, destroy, err := generic.NewRawStorage(config, newObject, newList, prefix)
	if err != nil {
		return raw, destroy, err
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:   trimmingStorage{Interface: raw, trimmer: t, newMarker: newObject},
		Versioner: storage.APIObjectVersioner{}, GroupResource: config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: prefix,
		KeyFunc: keyOrMarker(keyOf), NewFunc: newObject, NewListFunc: newList,
		GetAttrsFunc: attributes, IndexerFuncs: triggers, Indexers: indexers,
		Codec: config.Codec, Clock: t.Clock,
	})
	if err != nil {
		return nil, func() {}, err
	}
	delegator := cacher.NewCacheDelegator(cached, raw)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		cached.Stop()
		destroy()
	}), nil
}

// keyOrMarker maps the object without a name, which the API never has, to a key
// that is below no resource's prefix.
func keyOrMarker(keyOf func(runtime.Object) (string, error)) func(runtime.Object) (string, error) {
	return func(o runtime.Object) (string, error) {
		if m, err := meta.Accessor(o); err == nil && m.GetName() == "" {
			return markerKey, nil
		}
		return keyOf(o)
	}
}

// trimmingStorage is a storage whose watches send markers too.
type trimmingStorage struct {
	storage.Interface
	trimmer   Trimmer
	newMarker func() runtime.Object
}

// Watch implements storage.Interface.
func (s trimmingStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	inner, err := s.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	w := &trimmedWatch{trimmingStorage: s, inner: inner, events: make(chan watch.Event), stopped: make(chan struct{})}
	go w.forwardEvents()
	return w, nil
}

// trimmedWatch forwards the events of inner, and sends markers.
type trimmedWatch struct {
	trimmingStorage
	inner   watch.Interface
	events  chan watch.Event
	stop    sync.Once
	stopped chan struct{}

	timer     clock.Timer
	version   string // the last resourceVersion
	recent    int    // events in this period
	calmCount int    // periods in a row that had few
	unmarked  int    // events that no marker has followed
	pending   int    // markers still to be sent
	filled    bool   // the cache is full of markers, and as large as before
}

// ResultChan implements watch.Interface.
func (w *trimmedWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *trimmedWatch) Stop() {
	w.stop.Do(func() { close(w.stopped) })
	w.inner.Stop()
}

func (w *trimmedWatch) forwardEvents() {
	defer close(w.events)
	w.timer = w.trimmer.Clock.NewTimer(countPeriod)
	defer w.timer.Stop()
	for {
		select {
		case e, open := <-w.inner.ResultChan():
			if !open || !w.sendEvent(e) {
				return
			}
			w.countEvent(e)
		case <-w.timer.C():
			if !w.endPeriod() {
				return
			}
		case <-w.stopped:
			return
		}
	}
}

// sendEvent reports whether the event was received.
func (w *trimmedWatch) sendEvent(e watch.Event) bool {
	select {
	case w.events <- e:
		return true
	case <-w.stopped:
		return false
	}
}

// countEvent records what the cache keeps. A bookmark only has a version.
func (w *trimmedWatch) countEvent(e watch.Event) {
	m, err := meta.Accessor(e.Object)
	if err != nil || e.Type == watch.Error {
		return
	}
	w.version = m.GetResourceVersion()
	if e.Type != watch.Bookmark {
		w.unmarked++
		w.recent++
	}
}

// endPeriod is called once a period, and more often while markers are pending. It reports
// whether the watch continues.
func (w *trimmedWatch) endPeriod() bool {
	if w.pending == 0 {
		w.planMarkers()
	}
	if w.pending == 0 {
		w.timer.Reset(countPeriod)
		return true
	}
	count := min(w.pending, markerBatch)
	if !w.sendMarkers(count) {
		return false
	}
	if w.pending -= count; w.pending > 0 {
		w.timer.Reset(markerPause)
		return true
	}
	if w.calmCount, w.filled = 0, !w.filled; !w.filled {
		w.trimmer.Trimmed()
	}
	w.timer.Reset(countPeriod)
	return true
}

// planMarkers decides, in a calm period, how many markers to send. First it is as many as
// there were events, because only a full cache is halved, and at least half of it is
// full. Later, when those are old too, it is as many as halve the cache to the smallest
// size.
func (w *trimmedWatch) planMarkers() {
	if w.calmCount++; w.recent > maxCalmEvents {
		w.calmCount = 0
	}
	w.recent = 0
	switch {
	case w.calmCount < calmPeriods:
	case w.filled:
		w.pending = halvings
	case w.unmarked >= minTrimEvents:
		w.pending, w.unmarked = w.unmarked, 0
	}
}

// sendMarkers sends markers and reports whether they were received. The last one removes
// the marker object from the cache's list. So at least one comes before it: otherwise the
// cache has none to remove.
func (w *trimmedWatch) sendMarkers(count int) bool {
	marker := w.newMarker()
	m, err := meta.Accessor(marker)
	if err != nil {
		return true // it has no metadata, so it cannot be cached either
	}
	m.SetResourceVersion(w.version)
	for range max(count-1, 1) {
		if !w.sendEvent(watch.Event{Type: watch.Modified, Object: marker}) {
			return false
		}
	}
	return w.sendEvent(watch.Event{Type: watch.Deleted, Object: marker})
}

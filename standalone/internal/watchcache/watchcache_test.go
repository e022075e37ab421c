// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

// TestWatchCacheShrinksInCalmPeriods uses a real cache on a real etcd. After many events,
// and some time with few, the cache keeps few of them, and neither the watches nor the
// list show the markers that made it small.
func TestWatchCacheShrinksInCalmPeriods(t *testing.T) {
	things := minTrimEvents + 200
	s := newThings(t)
	var watches []*thingsWatch
	for range 3 { // with three watches the cache treats an event differently
		watches = append(watches, s.watch(t, "0", storage.Everything))
	}
	// What has no phase is selected, and a marker has none.
	watches = append(watches, s.watch(t, "0", storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.OneTermEqualSelector("status.phase", ""), GetAttrs: thingAttributes(),
	}))
	last := ""
	next := func(n int) {
		s.create(t, n)
		for _, w := range watches {
			last = w.expectAdded(t, n)
		}
	}
	for n := range things {
		next(n)
	}
	if have := cacheCapacity(t); have < things {
		t.Fatalf("the cache has room for %d events after %d: there is nothing to be made small", have, things)
	}
	s.passCalmPeriods(t, func() {
		next(things)
		things++
	})
	if have := cacheCapacity(t); have != 100 {
		t.Errorf("when it was calm the cache has room for %d events, not for 100", have)
	}
	list := &unstructured.UnstructuredList{}
	assert.NoError(t, s.GetList(t.Context(), thingsPrefix, storage.ListOptions{
		ResourceVersion: "0", Recursive: true, Predicate: storage.Everything,
	}, list))
	if len(list.Items) != things {
		t.Errorf("the cache lists %d objects, not %d", len(list.Items), things)
	}
	watches = append(watches, s.watch(t, last, storage.Everything))
	next(things) // no marker comes before it
}

const thingsPrefix = "/example.org/things/"

// things are a kind that is stored like a custom resource.
type things struct {
	storage.Interface
	clock   *testingclock.FakeClock
	trimmed chan struct{}
}

func newThings(t *testing.T) *things {
	t.Helper()
	metrics.Register()
	codec := runtime.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme)
	config := storagebackend.NewDefaultConfig("/registry", codec)
	config.Transport.ServerList = []string{startEtcd(t)}
	s := &things{clock: testingclock.NewFakeClock(time.Now()), trimmed: make(chan struct{}, 1)}
	trims := Trimmer{Clock: s.clock, Trimmed: func() { s.trimmed <- struct{}{} }}
	var destroy func()
	var err error
	s.Interface, destroy, err = trims.newStorage(config.ForResource(schema.GroupResource{Group: "example.org", Resource: "things"}), thingsPrefix,
		func(o runtime.Object) (string, error) {
			return thingsPrefix + o.(*unstructured.Unstructured).GetName(), nil
		},
		func() runtime.Object { return newThing("") },
		func() runtime.Object { return &unstructured.UnstructuredList{} },
		thingAttributes(),
		nil, &cache.Indexers{})
	assert.NoError(t, err)
	t.Cleanup(destroy)
	assert.Eventually(t, "the cache is filled", func(testing.TB) error { return s.ReadinessCheck() })
	return s
}

// thingAttributes returns what kube-apiserver selects custom resources by.
func thingAttributes() storage.AttrFunc {
	return customresource.NewStrategy(nil, false, newThing("").GroupVersionKind(), nil, nil, nil, nil, nil,
		[]apiextensionsv1.SelectableField{{JSONPath: ".status.phase"}}).GetAttrs
}

func newThing(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("example.org/v1")
	o.SetKind("Thing")
	o.SetName(name)
	return o
}

func (s *things) create(t *testing.T, n int) {
	t.Helper()
	name := strconv.Itoa(n)
	assert.NoError(t, s.Create(t.Context(), thingsPrefix+name, newThing(name), &unstructured.Unstructured{}, 0))
}

// thingsWatch watches things, and does so again where the cache has ended a watch as too slow.
type thingsWatch struct {
	things    *things
	predicate storage.SelectionPredicate
	version   string
	events    watch.Interface
}

func (s *things) watch(t *testing.T, version string, predicate storage.SelectionPredicate) *thingsWatch {
	t.Helper()
	w := &thingsWatch{things: s, predicate: predicate, version: version}
	w.begin(t)
	return w
}

func (w *thingsWatch) begin(t *testing.T) {
	t.Helper()
	var err error
	w.events, err = w.things.Watch(t.Context(), thingsPrefix, storage.ListOptions{
		ResourceVersion: w.version, Recursive: true, Predicate: w.predicate,
	})
	assert.NoError(t, err)
	t.Cleanup(w.events.Stop)
}

// passCalmPeriods lets periods pass, with an event in each, until the cache has become
// small.
func (s *things) passCalmPeriods(t *testing.T, event func()) {
	t.Helper()
	assert.Eventually(t, "the cache is made small", func(testing.TB) error {
		event()
		select {
		case <-s.trimmed:
			return nil
		default:
			s.clock.Step(countPeriod)
			return errors.New("it is large")
		}
	})
}

// expectAdded returns the resourceVersion of the event of the n-th thing, which must be
// the next event.
func (w *thingsWatch) expectAdded(t *testing.T, n int) string {
	t.Helper()
	e, isOpen := <-w.events.ResultChan()
	if !isOpen {
		w.begin(t)
		return w.expectAdded(t, n)
	}
	if o, ok := e.Object.(interface{ GetObject() runtime.Object }); ok {
		e.Object = o.GetObject() // an event that several watches share
	}
	thing, ok := e.Object.(*unstructured.Unstructured)
	if !ok || e.Type != watch.Added || thing.GetName() != strconv.Itoa(n) {
		t.Fatalf("the watch shows %s of %v, not that %d was added", e.Type, e.Object, n)
	}
	w.version = thing.GetResourceVersion()
	return w.version
}

// cacheCapacity returns how many events the cache has room for.
func cacheCapacity(t *testing.T) int {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	assert.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "watch_cache_capacity" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "things" {
					return int(m.GetGauge().GetValue())
				}
			}
		}
	}
	t.Fatal("there is no metric of the cache's capacity")
	return 0
}

// startEtcd returns the address of an etcd that ends with the test.
func startEtcd(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) url.URL { return url.URL{Scheme: "unix", Host: filepath.Join(dir, name)} }
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync, config.LogLevel = filepath.Join(dir, "etcd"), true, zapcore.FatalLevel.String()
	config.ListenClientUrls, config.ListenPeerUrls = []url.URL{at("client")}, []url.URL{at("peer")}
	server, err := embed.StartEtcd(config)
	assert.NoError(t, err)
	t.Cleanup(server.Close)
	<-server.Server.ReadyNotify()
	return "unix://" + filepath.Join(dir, "client")
}

// TestMarkersBeginModified checks that a cache never has to remove a marker that it
// does not have, however many are pending.
func TestMarkersBeginModified(t *testing.T) {
	t.Parallel()
	for _, count := range []int{1, 2, markerBatch} {
		w := &trimmedWatch{
			trimmingStorage: trimmingStorage{newMarker: func() runtime.Object { return newThing("") }},
			events:          make(chan watch.Event, markerBatch+1), stopped: make(chan struct{}), version: "7",
		}
		if !w.sendMarkers(count) {
			t.Fatalf("%d markers were not taken", count)
		}
		close(w.events)
		var types []watch.EventType
		for e := range w.events {
			types = append(types, e.Type)
		}
		last := len(types) - 1
		if last < max(count-1, 1) || types[last] != watch.Deleted || slices.Index(types, watch.Deleted) != last || types[0] != watch.Modified {
			t.Errorf("%d markers are %v: want Modified ones, and Deleted last", count, types)
		}
	}
}

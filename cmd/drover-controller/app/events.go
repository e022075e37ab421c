// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"cloudnative.tw/drover/cmd/drover-controller/apiserver"
)

// reporter is the source that events name.
const reporter = "drover"

// newRecorder returns a recorder of events, and a function that ends it.
func newRecorder(ctx context.Context, mgr ctrl.Manager) (r events.EventRecorder, end func(), err error) {
	client, err := typedeventsv1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, nil, err
	}
	b := events.NewBroadcaster(&serialSink{next: &events.EventSinkImpl{Interface: client}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // events of the last calls are sent too
	end = func() {
		b.Shutdown()
		cancel()
	}
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return b.NewRecorder(mgr.GetScheme(), reporter), end, nil
}

// clusterEvent returns a function that sends warnings that belong to no
// VirtualMachine. They are about the namespace that stands for the cluster.
func clusterEvent(r events.EventRecorder, reason, action string) func(text string) {
	cluster := &corev1.Namespace{}
	cluster.Name = metav1.NamespaceSystem
	return func(text string) {
		r.Eventf(cluster, nil, corev1.EventTypeWarning, reason, action, "%s", text[:min(len(text), longestNote)])
	}
}

// longestNote is the longest note that the events API accepts.
const longestNote = 1024

// serialSink sends events one at a time. client-go sends each in a separate goroutine:
// when many VMs change at once, hundreds of events would compete with more
// important writes.
type serialSink struct {
	mu   sync.Mutex
	next events.EventSink
}

// beginRequest waits for its turn and bounds the time of the request.
func (s *serialSink) beginRequest(ctx context.Context) (context.Context, func()) {
	s.mu.Lock()
	ctx, cancel := context.WithTimeout(ctx, apiserver.RequestTimeout)
	return ctx, func() {
		cancel()
		s.mu.Unlock()
	}
}

// Create implements events.EventSink.
func (s *serialSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	ctx, done := s.beginRequest(ctx)
	defer done()
	return s.next.Create(ctx, event)
}

// Update implements events.EventSink.
func (s *serialSink) Update(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	ctx, done := s.beginRequest(ctx)
	defer done()
	return s.next.Update(ctx, event)
}

// Patch implements events.EventSink.
func (s *serialSink) Patch(ctx context.Context, event *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	ctx, done := s.beginRequest(ctx)
	defer done()
	return s.next.Patch(ctx, event, patch)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxQueued bounds the events that wait; what comes on top is dropped.
	maxQueued = 20000
	// eventTries is how often an event is sent to an API that cannot be reached,
	// and eventPause the time between.
	eventTries = 12
	eventPause = 5 * time.Second
	// eventTimeout bounds one try, lastEvents what is sent on the way out.
	eventTimeout = 10 * time.Second
	lastEvents   = 500 * time.Millisecond
)

// sender sends events one at a time. So while much is to be done they take a
// small part of the API server's time, where client-go's recorder, which sends
// all at once, takes as much as the VMs do.
type sender struct {
	name   string
	client client.Writer
	scheme *runtime.Scheme
	clock  clock.WithTicker
	log    logr.Logger

	mu    sync.Mutex
	queue []*eventsv1.Event
	more  chan struct{}
}

var _ events.EventRecorder = (*sender)(nil)

func newSender(name string, c client.Client, clk clock.WithTicker, log logr.Logger) *sender {
	return &sender{name: name, client: c, scheme: c.Scheme(), clock: clk, log: log, more: make(chan struct{}, 1)}
}

// Eventf implements events.EventRecorder. It does not block.
func (s *sender) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	about, err := reference.GetReference(s.scheme, regarding)
	if err != nil {
		s.log.Error(err, "Event has no object", "reason", reason)
		return
	}
	e := s.event(about, kind, reason, action, fmt.Sprintf(note, args...))
	if related != nil {
		e.Related, _ = reference.GetReference(s.scheme, related)
	}
	s.log.V(1).Info(e.Note, "type", kind, "object", about, "reason", reason)
	s.mu.Lock()
	full := len(s.queue) >= maxQueued
	if !full {
		s.queue = append(s.queue, e)
	}
	s.mu.Unlock()
	if full {
		s.log.Info("Event dropped: too many wait", "object", about, "reason", reason)
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *sender) event(about *corev1.ObjectReference, kind, reason, action, note string) *eventsv1.Event {
	now := s.clock.Now()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: util.GenerateEventName(about.Name, now.UnixNano())},
		EventTime:  metav1.NewMicroTime(now), ReportingController: s.name, ReportingInstance: s.name,
		Type: kind, Reason: reason, Action: action, Note: note, Regarding: *about,
	}
}

// Start sends events until ctx ends, and then for a moment longer.
func (s *sender) Start(ctx context.Context) error {
	for {
		s.sendAll(ctx)
		select {
		case <-s.more:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastEvents)
			defer cancel()
			s.sendAll(last)
			return nil
		}
	}
}

// NeedLeaderElection has the sender outlive the lead: the last step's event is
// sent too.
func (s *sender) NeedLeaderElection() bool { return false }

// sendAll sends what waits. What ctx's end cut short waits on.
func (s *sender) sendAll(ctx context.Context) {
	for e := s.first(); e != nil; e = s.first() {
		if !s.send(ctx, e) {
			return
		}
		s.drop()
	}
}

func (s *sender) first() *eventsv1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return nil
	}
	return s.queue[0]
}

func (s *sender) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue[0] = nil
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil // what grew under load is given back
	}
}

// send sends one event, again and again while the API cannot be reached. It
// reports whether the event is dealt with, as it is not when ctx ends.
func (s *sender) send(ctx context.Context, e *eventsv1.Event) bool {
	for range eventTries {
		err := s.try(ctx, e)
		var refused *apierrors.StatusError
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
			return true
		case ctx.Err() != nil:
			return false
		case errors.As(err, &refused) && !worthAnotherTry(err):
			s.log.Info("Event refused", "object", e.Regarding, "reason", e.Reason, "cause", err.Error())
			return true
		}
		if !s.pause(ctx) {
			return false
		}
	}
	s.log.Info("Event dropped: the API cannot be reached", "object", e.Regarding, "reason", e.Reason)
	return true
}

func worthAnotherTry(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

func (s *sender) try(ctx context.Context, e *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	return s.client.Create(ctx, e.DeepCopy())
}

func (s *sender) pause(ctx context.Context) bool {
	timer := s.clock.NewTimer(eventPause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

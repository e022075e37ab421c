// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Event is a watch event, its arrival time, and its object's resourceVersion as a number,
// which orders the events of one cluster.
type Event[T runtime.Object] struct {
	Type    watch.EventType
	Object  T
	Version uint64
	At      time.Time
}

// Log records the events of a watch.
type Log[T runtime.Object] struct {
	mu     sync.Mutex
	events []Event[T]
	err    error
	more   chan struct{} // closed when something was added
}

// StartLog records the events of a watch from now on, until ctx ends.
func StartLog[T runtime.Object](ctx context.Context, lw *cache.ListWatch) (*Log[T], error) {
	w, err := watchFrom(ctx, lw)
	if err != nil {
		return nil, err
	}
	l := &Log[T]{more: make(chan struct{})}
	go l.recordEvents(w)
	return l, nil
}

// watchFrom watches changes from now on.
func watchFrom(ctx context.Context, lw *cache.ListWatch) (watch.Interface, error) {
	list, err := lw.ListWithContext(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	return watchtools.NewRetryWatcherWithContext(ctx, accessor.GetResourceVersion(), lw)
}

func (l *Log[T]) recordEvents(w watch.Interface) {
	for e := range w.ResultChan() {
		l.recordEvent(e, time.Now())
	}
	l.appendEvent(nil, errors.New("the watch ended"))
}

func (l *Log[T]) recordEvent(e watch.Event, now time.Time) {
	object, ok := e.Object.(T)
	if !ok {
		l.appendEvent(nil, fmt.Errorf("the watch sent %s, a %T", e.Type, e.Object))
		return
	}
	version, err := versionOf(object)
	l.appendEvent(&Event[T]{Type: e.Type, Object: object, Version: version, At: now}, err)
}

func (l *Log[T]) appendEvent(e *Event[T], err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e != nil {
		l.events = append(l.events, *e)
	}
	if l.err == nil {
		l.err = err
	}
	close(l.more)
	l.more = make(chan struct{})
}

// Len returns the number of events so far, which is the position from which Await
// waits for later events.
func (l *Log[T]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// Last returns the latest event, or false if there is none yet.
func (l *Log[T]) Last() (Event[T], bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) == 0 {
		return Event[T]{}, false
	}
	return l.events[len(l.events)-1], true
}

// Await waits for the first matching event from a position on.
func (l *Log[T]) Await(ctx context.Context, from int, match func(Event[T]) bool) (Event[T], error) {
	for {
		l.mu.Lock()
		fresh, err, more := l.events[from:], l.err, l.more
		l.mu.Unlock()
		for _, e := range fresh {
			if match(e) {
				return e, nil
			}
		}
		if err != nil {
			return Event[T]{}, err
		}
		from += len(fresh)
		select {
		case <-more:
		case <-ctx.Done():
			return Event[T]{}, context.Cause(ctx)
		}
	}
}

// versionOf returns an object's resourceVersion as a number.
func versionOf(object runtime.Object) (uint64, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// event is an event of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// metadata returns the metadata of the event's object.
func (e event) metadata() metav1.ObjectMeta {
	var o struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	_ = json.Unmarshal(e.Object, &o)
	return o.Metadata
}

func (e event) name() string { return e.metadata().Name }

// stream is a watch of a process. The process reads the API server's events as the fault
// changes them.
type stream struct {
	*io.PipeReader
	injector *injector
	process  int
	resource string
	to       *io.PipeWriter
	from     io.ReadCloser
	events   chan event
	ended    chan struct{} // closed when forwarding has ended
	readErr  error         // valid once events is closed
}

func newStream(i *injector, process int, resource string, from io.ReadCloser) *stream {
	r, w := io.Pipe()
	s := &stream{PipeReader: r, injector: i, process: process, resource: resource, to: w, from: from, events: make(chan event), ended: make(chan struct{})}
	go s.read()
	go func() {
		_ = w.CloseWithError(s.forward(nil))
		close(s.ended)
		_ = from.Close()
	}()
	return s
}

// Close ends the watch at both ends.
func (s *stream) Close() error { return errors.Join(s.PipeReader.Close(), s.from.Close()) }

// errCut ends a connection in the middle of an answer.
var errCut = errors.New("the connection was cut")

// read reads events until the watch ends.
func (s *stream) read() {
	defer close(s.events)
	events := json.NewDecoder(s.from)
	for {
		var e event
		if s.readErr = events.Decode(&e); s.readErr != nil {
			return
		}
		select {
		case s.events <- e:
		case <-s.ended:
			return
		}
	}
}

// forward delivers events until the watch ends, which is an error, or until the channel
// until receives; it may be nil.
func (s *stream) forward(until <-chan time.Time) error {
	for {
		select {
		case <-until:
			return nil
		case e, open := <-s.events:
			if !open {
				return s.readErr
			}
			deliver := s.deliver
			if s.injector.count(s.process, s.resource, e) {
				deliver = func(e event) error { return s.injector.occur(s, e) }
			}
			if err := deliver(e); err != nil {
				return err
			}
		}
	}
}

// deliver sends an event to the process.
func (s *stream) deliver(e event) error {
	content, err := json.Marshal(s.injector.fault.translate(e))
	if err != nil {
		return err
	}
	_, err = s.to.Write(append(content, '\n'))
	return err
}

// expire ends the watch as the API server does if the watch's version is too old: the process
// has to list again.
func (s *stream) expire() error {
	content, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
	})
	if err != nil {
		return err
	}
	if err := s.deliver(event{"ERROR", content}); err != nil {
		return err
	}
	return io.EOF
}

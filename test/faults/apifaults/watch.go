// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"errors"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
)

// lateness is how late an event is, or the end of a watch that has lost an event. It is
// longer than any step of a workload.
const lateness = 2 * time.Second

// WatchEvents are faults of a single event of a watch.
var WatchEvents = Faults{
	constructors: map[string]func() fault{
		"late":       func() fault { return watchFault{occurs: deliverLate} },
		"twice":      func() fault { return watchFault{occurs: deliverTwice} },
		"cut before": func() fault { return watchFault{occurs: cutBefore} },
		"cut after":  func() fault { return watchFault{occurs: cutAfter} },
		"expired":    func() fault { return watchFault{occurs: expire} },
		"missing":    func() fault { return watchFault{occurs: leaveOut} },
	},
	recoveries: []lab.Recovery{lab.ByRestart, lab.ByStandby},
	isWanted:   func(string) bool { return true },
}

type watchFault struct {
	noFault
	occurs func(*stream, event) error
}

func (f watchFault) occur(s *stream, e event) error { return f.occurs(s, e) }

// deliverLate delays the event and, since a watch keeps the order, all later ones.
func deliverLate(s *stream, e event) error {
	time.Sleep(lateness)
	return s.deliver(e)
}

func deliverTwice(s *stream, e event) error { return errors.Join(s.deliver(e), s.deliver(e)) }

// cutBefore ends the connection before the event. The process watches again from the previous event.
func cutBefore(*stream, event) error { return errCut }

func cutAfter(s *stream, e event) error { return errors.Join(s.deliver(e), errCut) }

// expire withholds the event and all later ones, and then ends the watch, like an API server
// that is too slow for the watch. The process has to list again.
func expire(s *stream, _ event) error {
	time.Sleep(lateness)
	return s.expire()
}

// leaveOut drops the event and delivers later ones, like an API server whose cache is
// broken. Then the watch ends, and the process has to list again.
func leaveOut(s *stream, _ event) error {
	if err := s.forward(time.After(lateness)); err != nil {
		return err
	}
	return s.expire()
}

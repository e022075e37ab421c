// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"errors"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
)

// lateness is how late an event is, or the end of a watch that has lost one. It is longer
// than any step of a workload takes.
const lateness = 2 * time.Second

// WatchEvents are faults of a single event of a watch.
var WatchEvents = Faults{
	byName: map[string]func() fault{
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

// deliverLate delays the event and, since a watch keeps the order, all after it.
func deliverLate(s *stream, e event) error {
	time.Sleep(lateness)
	return s.deliver(e)
}

func deliverTwice(s *stream, e event) error { return errors.Join(s.deliver(e), s.deliver(e)) }

// cutBefore ends the connection. The process watches again from the event before.
func cutBefore(*stream, event) error { return errCut }

func cutAfter(s *stream, e event) error { return errors.Join(s.deliver(e), errCut) }

// expire withholds the event and all after it, as of a watch that the API server cannot
// follow with, which it then ends: the process has to list again.
func expire(s *stream, _ event) error {
	time.Sleep(lateness)
	return s.expire()
}

// leaveOut leaves out the event and delivers those after it, which only a broken cache of
// an API server does. Then the watch ends, and the process has to list again.
func leaveOut(s *stream, _ event) error {
	if err := s.forward(time.After(lateness)); err != nil {
		return err
	}
	return s.expire()
}

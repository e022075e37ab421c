// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package crashpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// callFault is a fault that a call to an engine may have.
type callFault struct {
	// times is how often the call is carried out.
	times int
	// hangs says that it ends only with its context.
	hangs bool
	// late says that it is carried out later.
	late bool
	// err is returned in place of the call's result.
	err error
}

var errNoAnswer = fmt.Errorf("no answer (injected): %w", context.DeadlineExceeded)

// lateBy is less than the time after which Drover tries again.
const lateBy = 500 * time.Millisecond

// callFaults are those that test/faults chooses from, by name.
var callFaults = map[string]callFault{
	"late":            {late: true, err: errNoAnswer},
	"fails":           {err: errors.New("the call failed (injected)")},
	"cut off":         {err: io.ErrUnexpectedEOF},
	"hangs":           {hangs: true},
	"times out after": {times: 1, err: errNoAnswer},
	"cut off after":   {times: 1, err: io.ErrUnexpectedEOF},
	"twice":           {times: 2},
}

// Inject returns do, or what happens in its place if a fault was chosen for the point. The
// end of a call that hangs or is late is recorded with "." before it.
func (p Point) Inject(do func(context.Context) error) func(context.Context) error {
	name := p.Chosen(slices.Collect(maps.Keys(callFaults))...)
	if name == "" {
		return do
	}
	fault := callFaults[name]
	return func(ctx context.Context) (err error) {
		if fault.hangs {
			<-ctx.Done()
			points().noteLine("." + p.name + "/" + name)
			return ctx.Err()
		}
		if fault.late {
			time.AfterFunc(lateBy, func() {
				_ = do(context.WithoutCancel(ctx))
				points().noteLine("." + p.name + "/" + name)
			})
		}
		for range fault.times {
			err = do(ctx)
		}
		if fault.err != nil {
			return fault.err
		}
		return err
	}
}

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
	// hangs is set if the call ends only with its context.
	hangs bool
	// late is set if the call is carried out after lateBy, when it has already returned err.
	late bool
	// err, unless nil, is returned in place of the call's error.
	err error
}

var errNoAnswer = fmt.Errorf("no answer (injected): %w", context.DeadlineExceeded)

// lateBy is how much later a late call is carried out. Drover's next try comes even later.
const lateBy = 500 * time.Millisecond

// callFaults are the faults from which test/faults chooses, keyed by name.
var callFaults = map[string]callFault{
	"late":            {late: true, err: errNoAnswer},
	"fails":           {err: errors.New("the call failed (injected)")},
	"cut off":         {err: io.ErrUnexpectedEOF},
	"hangs":           {hangs: true},
	"times out after": {times: 1, err: errNoAnswer},
	"cut off after":   {times: 1, err: io.ErrUnexpectedEOF},
	"twice":           {times: 2},
}

// Inject returns call, or a function with the fault that was chosen for the point. For a call
// that hangs or is late, a line with a leading "." records its end.
func (p Point) Inject(call func(context.Context) error) func(context.Context) error {
	name := p.ChooseFault(slices.Collect(maps.Keys(callFaults))...)
	if name == "" {
		return call
	}
	fault := callFaults[name]
	return func(ctx context.Context) (err error) {
		if fault.hangs {
			<-ctx.Done()
			points().recordLine("." + p.name + "/" + name)
			return ctx.Err()
		}
		if fault.late {
			time.AfterFunc(lateBy, func() {
				_ = call(context.WithoutCancel(ctx))
				points().recordLine("." + p.name + "/" + name)
			})
		}
		for range fault.times {
			err = call(ctx)
		}
		if fault.err != nil {
			return fault.err
		}
		return err
	}
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"cloudnative.tw/drover/internal/guest/wire"
)

// MissingVerbError means that the agent lacks an operation, since an earlier version of Drover has booted the guest.
type MissingVerbError struct{ Verb string }

func (e *MissingVerbError) Error() string {
	return fmt.Sprintf("the guest was booted by an earlier version of Drover, whose agent lacks %q: restart the machine to get it", e.Verb)
}

// maxVerbs bounds the list of a guest, and verb its elements.
const maxVerbs = 256

var verb = regexp.MustCompile(`^[a-zA-Z]{1,32}$`)

// requireVerb fails with MissingVerbError if the agent lacks an operation. The first call of a session asks the agent.
func (c *Client) requireVerb(ctx context.Context, op string) error {
	if op == wire.OpHello {
		return nil
	}
	known := c.verbs.Load()
	if known == nil {
		asked, err := c.askVerbs(ctx)
		if err != nil {
			return err
		}
		known = &asked
		c.verbs.Store(known)
	}
	if !slices.Contains(*known, op) {
		return &MissingVerbError{Verb: op}
	}
	return nil
}

// askVerbs returns the operations of the agent.
func (c *Client) askVerbs(ctx context.Context) ([]string, error) {
	answer, err := c.ask(ctx, wire.Request{Op: wire.OpHello})
	if errors.Is(err, ErrRefused) { // by an agent that does not know the operation
		return wire.FirstVerbs, nil
	}
	isInvalid := func(name string) bool { return !verb.MatchString(name) }
	if err == nil && (len(answer.Verbs) > maxVerbs || slices.ContainsFunc(answer.Verbs, isInvalid)) {
		err = fmt.Errorf("%w: its list of operations is invalid", ErrBadAnswer)
	}
	return answer.Verbs, err
}

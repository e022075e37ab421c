// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

func TestErrorfKeepsKindCauseAndText(t *testing.T) {
	err := fmt.Errorf("ensuring vm: %w", Errorf(ErrRetry, "pulling %s: %w", "nginx", fs.ErrPermission))
	if want := "ensuring vm: pulling nginx: permission denied"; err.Error() != want {
		t.Errorf("got the text %q, want %q", err, want)
	}
	if !errors.Is(err, ErrRetry) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v must be of the kind %v and be caused by %v", err, ErrRetry, fs.ErrPermission)
	}
	if errors.Is(err, ErrInvalid) {
		t.Errorf("%v must not be of another kind", err)
	}
}

func TestReason(t *testing.T) {
	base := Errorf(ErrRetry, "no image")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"none":       {base, ""},
		"nil":        {nil, ""},
		"attached":   {WithReason(ReasonImageUnavailable, base), ReasonImageUnavailable},
		"wrapped":    {fmt.Errorf("x: %w", WithReason(ReasonNameConflict, base)), ReasonNameConflict},
		"outer wins": {WithReason(ReasonDuplicate, WithReason(ReasonNameConflict, base)), ReasonDuplicate},
		"of a join":  {errors.Join(base, WithReason(ReasonPortConflict, base)), ReasonPortConflict},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ReasonOf(c.err); got != c.want {
				t.Errorf("got the reason %q, want %q", got, c.want)
			}
		})
	}
	if WithReason(ReasonDuplicate, nil) != nil {
		t.Error("WithReason must leave nil as it is")
	}
	if err := WithReason(ReasonDuplicate, base); !errors.Is(err, ErrRetry) || err.Error() != base.Error() {
		t.Errorf("a reason must not change the kind and the text of %v, got %v", base, err)
	}
}

func TestAmbiguous(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nil":               {nil, false},
		"not found":         {Errorf(ErrNotFound, "x"), false},
		"invalid":           {Errorf(ErrInvalid, "x"), false},
		"unsupported":       {Errorf(ErrUnsupported, "x"), false},
		"retry":             {Errorf(ErrRetry, "x: %w", context.Canceled), false},
		"exhausted":         {Errorf(ErrExhausted, "x"), false},
		"fenced":            {Errorf(ErrFenced, "x"), false},
		"not leading":       {Errorf(ErrNotLeading, "x"), false},
		"engine lost":       {Errorf(ErrUnavailable, "x"), true},
		"deadline":          {context.DeadlineExceeded, true},
		"no sentinel":       {errors.New("x"), true},
		"wrapped not found": {fmt.Errorf("deleting: %w", WithReason(ReasonDuplicate, ErrNotFound)), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Ambiguous(c.err); got != c.want {
				t.Errorf("Ambiguous(%v): got %v, want %v", c.err, got, c.want)
			}
		})
	}
}

func TestCommandError(t *testing.T) {
	for refusal, want := range map[string]error{
		`exec: "x": executable file not found in $PATH: unknown`:          ErrCommandNotFound,
		`Failed to execute child process “x” (No such file or directory)`: ErrCommandNotFound,
		`exec: "/etc": permission denied: unknown`:                        ErrCommandNotExecutable,
		`Failed to execute child process “/x” (Exec format error)`:        ErrCommandNotExecutable,
		`Failed to fork (Cannot allocate memory)`:                         nil,
		``: nil,
	} {
		if got := CommandError(refusal); got != want { //nolint:errorlint // a kind itself
			t.Errorf("%q is %v, want %v", refusal, got, want)
		}
	}
}

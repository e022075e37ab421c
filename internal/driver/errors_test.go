// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestErrorfKeepsKindCauseAndText(t *testing.T) {
	err := fmt.Errorf("ensuring vm: %w", Errorf(ErrRetry, "pulling %s: %w", "nginx", fs.ErrPermission))
	want := "ensuring vm: pulling nginx: permission denied"
	assert.True(t, err.Error() == want, "got the text %q, want %q", err, want)
	assert.True(t, errors.Is(err, ErrRetry) && errors.Is(err, fs.ErrPermission), "%v must be of the kind %v and be caused by %v", err, ErrRetry, fs.ErrPermission)
	assert.True(t, !errors.Is(err, ErrInvalid), "%v must not be of another kind", err)
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
			assert.Equal(t, "got the reason", ReasonOf(c.err), c.want)
		})
	}
	assert.True(t, WithReason(ReasonDuplicate, nil) == nil, "WithReason must leave nil as it is")
	err := WithReason(ReasonDuplicate, base)
	assert.True(t, errors.Is(err, ErrRetry) && err.Error() == base.Error(), "a reason must not change the kind and the text of %v, got %v", base, err)
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
			assert.Equal(t, fmt.Sprintf("Ambiguous(%v)", c.err), Ambiguous(c.err), c.want)
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

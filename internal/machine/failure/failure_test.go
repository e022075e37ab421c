// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failure_test

import (
	"errors"
	"fmt"
	"testing"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
)

// TestNames checks the names that other versions of Drover send and expect.
func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{
		"NotRunning": failure.ErrNotRunning, "Fenced": failure.ErrFenced, "Stale": failure.ErrStale, "Unknown": failure.ErrUnknown,
		"Refused": failure.ErrRefused, "NoMachine": failure.ErrNoMachine, "NoAnswer": failure.ErrNoAnswer, "Taken": failure.ErrTaken,
		"Busy": failure.ErrBusy, "Inputs": failure.ErrTooManyInputs, "InputOpen": failure.ErrInputOpen, "InputLong": failure.ErrInputTooLong,
		"Paused": failure.ErrPaused, "NoAgent": failure.ErrNoAgent, "Terminal": failure.ErrTerminalUnsupported, "Settings": failure.ErrSettingsUnsupported, "Disabled": failure.ErrDisabled,
		"Silent": failure.ErrSilent, "BadAnswer": failure.ErrBadAnswer, "CommandNotFound": failure.ErrCommandNotFound,
		"CommandNotExecutable": failure.ErrCommandNotExecutable, "Command": failure.ErrCommand, "EndUnknown": failure.ErrEndUnknown,
		"OutputCut": failure.ErrOutputCut, "Failed": failure.ErrFailed,
	} {
		assert.Equal(t, fmt.Sprintf("%v is sent as", want), failure.NameOf(fmt.Errorf("a port: %w", want)), name)
		assert.ErrorIs(t, name, failure.ByName(name), want)
	}
	for err, want := range map[error]string{
		nil:                     "",
		errors.New("hunter2"):   "Failed",
		failure.ErrUnreachable:  "Failed",
		failure.ErrAgentRefused: "Disabled",
		fmt.Errorf("%w: %w", failure.ErrNoAnswer, failure.ErrRefused):             "Refused",
		fmt.Errorf("%w: %w", failure.ErrCommandNotFound, failure.ErrAgentRefused): "CommandNotFound",
	} {
		assert.Equal(t, fmt.Sprintf("%v is sent as", err), failure.NameOf(err), want)
	}
	assert.NoError(t, failure.ByName(""))
	assert.ErrorIs(t, "another name", failure.ByName("hunter2"), failure.ErrProtocol, "an unknown failure")
}

// TestKinds checks that a failure after which something may have been changed is never one to try again.
func TestKinds(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]failure.Kind{
		nil: failure.Other, errors.New("hunter2"): failure.Other,
		fmt.Errorf("a command: %w", failure.ErrEndUnknown): failure.Other,
		fmt.Errorf("a console: %w", failure.ErrTaken):      failure.Taken,
		failure.ErrTooManyStreams:                          failure.Busy,
		failure.ErrAgentRefused:                            failure.Unsupported,
		failure.ErrUnreachable:                             failure.Retry,
	} {
		assert.Equal(t, fmt.Sprintf("%v is of kind", err), failure.KindOf(err), want)
	}
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assert has the only two ways in which a test checks a condition that becomes true
// after some time: Eventually waits until it is true, and Check requires that it is true now.
//
// Tests are without timeouts. If Drover must do something within a time, a test checks
// this with a fake clock, or a benchmark measures it. For slow hosts limit.go has the only limit
// of waits.
//
// Start with Eventually. Poll is the same for code that runs without a test. Of the assertions,
// NoError and Require end the test; after the others it continues.
package assert

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Eventually calls check until it returns nil and no assertion in it has failed, and returns how
// long that took. At the limit it fails the test with the last error of check. Before, a failed
// assertion, such as Fatal of the testing.TB that check gets, only means "not yet".
func Eventually(t testing.TB, condition string, check func(t testing.TB) error) time.Duration {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // cleanups wait, too
	took, err := poll(ctx, t.Name(), condition, func() error { return try(t, check) })
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// Check calls check once, and fails the test if check returns an error or an assertion in it fails.
// It is for a condition that must already be true, since a consequence was observed.
func Check(t testing.TB, condition string, check func(t testing.TB) error) {
	t.Helper()
	if err := try(t, check); err != nil {
		t.Fatalf("%s: %v", condition, err)
	}
}

// NoError fails the test if err is not nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ReportError fails the test without ending it if err is not nil. Any goroutine may call it.
func ReportError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Require ends the test with a message unless a condition is true.
func Require(t testing.TB, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Fatalf(format, args...)
	}
}

// True fails the test with a message unless a condition is true.
func True(t testing.TB, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Errorf(format, args...)
	}
}

// Equal fails the test unless two values are equal.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", what, format(got), format(want))
	}
}

// Contains fails the test unless a text contains another one.
func Contains(t testing.TB, subject, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s: got %q, want %q in it", subject, got, want)
	}
}

// format returns a value in readable form, and a text in quotes.
func format(value any) string {
	if reflect.ValueOf(value).Kind() == reflect.String {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%+v", value)
}

// ErrorIs fails the test unless err is of a kind and contains all texts. The kind nil means no error.
func ErrorIs(t testing.TB, subject string, err, kind error, says ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got the error %v, want the kind %v", subject, err, kind)
		return
	}
	for _, text := range says {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%s: got the error %v, want %q in it", subject, err, text)
		}
	}
}

// ErrorSays fails the test unless err contains a text. An empty text means that err must be nil.
func ErrorSays(t testing.TB, subject string, err error, says string) {
	t.Helper()
	if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("%s: got the error %v, want %q", subject, err, says)
	}
}

// ErrorOf returns the error of a call that also returns a value.
func ErrorOf[T any](_ T, err error) error { return err }

// ErrorUnless returns an error with a message unless a condition is true, for functions that
// Eventually, Check and Poll call.
func ErrorUnless(condition bool, format string, args ...any) error {
	if condition {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// Receive returns the next value of a channel. It fails the test if there is none or the channel is closed.
func Receive[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	Eventually(t, what, func(testing.TB) error {
		select {
		case got, open := <-from:
			if !open {
				t.Fatalf("%s: the channel was closed", what)
			}
			v = got
			return nil
		case <-time.After(maxPause):
			return errors.New("nothing has come")
		}
	})
	return v
}

// Poll is Eventually without a test: if check does not succeed within the limit, or before ctx
// ends, it returns an error with the name of the condition and the last error of check.
func Poll(ctx context.Context, condition string, check func() error) error {
	_, err := poll(ctx, "", condition, check)
	return err
}

// The time between two checks is a tenth of the time waited so far, within these bounds, so that
// waiting tests do not make a slow host slower.
const (
	minPause = 10 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

func poll(ctx context.Context, test, condition string, check func() error) (took time.Duration, err error) {
	for begin := time.Now(); ; {
		err = check()
		took = time.Since(begin)
		if err == nil {
			record(test, condition, took)
			return took, nil
		}
		if isOver(took) {
			record(test, condition, took)
			return took, fmt.Errorf("%s: not within %s, at last: %w", condition, took.Round(time.Second), err)
		}
		select {
		case <-time.After(min(max(took/10, minPause), maxPause)):
		case <-ctx.Done():
			return took, fmt.Errorf("%s: %w after %s, at last: %w", condition, context.Cause(ctx), took.Round(time.Second), err)
		}
	}
}

// try calls check with a new testing.TB, and returns its error, or the failure of an assertion.
func try(t testing.TB, check func(testing.TB) error) (err error) {
	a := &attempt{TB: t}
	defer func() {
		cause := recover()
		if cause == errAttemptEnded { //nolint:errorlint // The value of a panic is not wrapped.
			err = a.err()
		} else if cause != nil {
			panic(cause)
		}
	}()
	if err := check(a); err != nil {
		return err
	}
	return a.err()
}

// errAttemptEnded is the panic of FailNow of an attempt.
var errAttemptEnded = errors.New("the attempt has ended")

// attempt is the testing.TB of one call of check: a failure fails only the attempt, not the
// test. Only the goroutine that called check may use it.
type attempt struct {
	testing.TB
	failed bool
	texts  []string
}

func (a *attempt) err() error {
	if !a.failed {
		return nil
	}
	return errors.New(strings.Join(a.texts, "\n"))
}

// Error implements testing.TB.
func (a *attempt) Error(args ...any) { a.fail(fmt.Sprint(args...)) }

// Errorf implements testing.TB.
func (a *attempt) Errorf(format string, args ...any) { a.fail(fmt.Sprintf(format, args...)) }

// Fatal implements testing.TB.
func (a *attempt) Fatal(args ...any) { a.fail(fmt.Sprint(args...)); a.FailNow() }

// Fatalf implements testing.TB.
func (a *attempt) Fatalf(format string, args ...any) {
	a.fail(fmt.Sprintf(format, args...))
	a.FailNow()
}

// Log implements testing.TB. The text becomes a part of the attempt's error.
func (a *attempt) Log(args ...any) { a.texts = append(a.texts, fmt.Sprint(args...)) }

// Logf is Log with a format.
func (a *attempt) Logf(format string, args ...any) {
	a.texts = append(a.texts, fmt.Sprintf(format, args...))
}

// Fail implements testing.TB.
func (a *attempt) Fail() { a.failed = true }

// Failed reports whether the attempt has failed.
func (a *attempt) Failed() bool { return a.failed }

// FailNow ends the attempt.
func (a *attempt) FailNow() { a.failed = true; panic(errAttemptEnded) }

func (a *attempt) fail(text string) {
	a.failed = true
	a.texts = append(a.texts, text)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assert has the only two ways in which a test checks a condition that takes time to
// hold: Eventually waits until it holds, and Check requires that it holds now.
//
// No test says how long something may take. How long Drover may take for a thing is either a
// property of the product, which is asserted against a fake clock or measured by a benchmark,
// or patience with the host, for which limit.go has the only limit.
//
// Start with Eventually. Poll is the same for code that runs without a test. Of the assertions,
// NoError and Require end the test; the others let it go on.
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

// Eventually calls check again and again until it returns nil and has failed nothing. If that
// never happens, it fails the test with the last error of check. A failed assertion inside check,
// such as Fatal of the testing.TB that check gets, means "not yet". It returns how long it took.
func Eventually(t testing.TB, condition string, check func(t testing.TB) error) time.Duration {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // cleanups wait, too
	took, err := poll(ctx, t.Name(), condition, func() error { return try(t, check) })
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// Check calls check once, and fails the test if check returns an error or fails an assertion: it
// is for a condition that must hold now, since a consequence of it was seen already.
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

// ReportError fails the test, which goes on, if err is not nil. Any goroutine may call it.
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

// Contains fails the test unless a text has another in it.
func Contains(t testing.TB, subject, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s: got %q, want %q in it", subject, got, want)
	}
}

// format returns a value in readable form, a text in quotes.
func format(value any) string {
	if reflect.ValueOf(value).Kind() == reflect.String {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%+v", value)
}

// ErrorIs fails the test unless err is of a kind, which is nil for no error, and has all texts.
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

// ErrorSays fails the test unless err has a text, or, if the text is empty, unless there is no error.
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

// Receive returns the next value of a channel, and fails the test if none comes or it is closed.
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

// A result is noticed at most a tenth late, within these bounds, and many tests that wait for a
// slow machine do not make it slower.
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

// attempt is the testing.TB of one call of a check: a failure fails only the attempt, not the
// test. Its methods must be called by the goroutine that called check.
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

// Error is testing.TB's.
func (a *attempt) Error(args ...any) { a.fail(fmt.Sprint(args...)) }

// Errorf is testing.TB's.
func (a *attempt) Errorf(format string, args ...any) { a.fail(fmt.Sprintf(format, args...)) }

// Fatal is testing.TB's.
func (a *attempt) Fatal(args ...any) { a.fail(fmt.Sprint(args...)); a.FailNow() }

// Fatalf is testing.TB's.
func (a *attempt) Fatalf(format string, args ...any) {
	a.fail(fmt.Sprintf(format, args...))
	a.FailNow()
}

// Log is testing.TB's. What is logged belongs to the attempt's error.
func (a *attempt) Log(args ...any) { a.texts = append(a.texts, fmt.Sprint(args...)) }

// Logf is Log with a format.
func (a *attempt) Logf(format string, args ...any) {
	a.texts = append(a.texts, fmt.Sprintf(format, args...))
}

// Fail is testing.TB's.
func (a *attempt) Fail() { a.failed = true }

// Failed reports whether the attempt has failed.
func (a *attempt) Failed() bool { return a.failed }

// FailNow ends the attempt.
func (a *attempt) FailNow() { a.failed = true; panic(errAttemptEnded) }

func (a *attempt) fail(text string) {
	a.failed = true
	a.texts = append(a.texts, text)
}

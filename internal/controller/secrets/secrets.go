// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package secrets reads the Secrets, and the ConfigMaps, that the spec of a VirtualMachine refers to. Start with
// Resolve, and for spec.files with ReadFiles.
package secrets

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

// maxEnvBytes limits the total size of spec.env: names and values, and two bytes more for each variable.
// The schema has the same limit for values in the spec. It is also the largest variable that Linux passes
// to a program.
const maxEnvBytes = 128 << 10

// Resolve fills in the fields of a driver's spec whose values may be secret, from the VirtualMachine and
// from Secrets. It reads each Secret once, and live, because a cache would need the right to list Secrets.
//
// Errors wrap driver.ErrRetry, have api.ReasonSecretUnavailable, and name the field. Only a start needs the
// content of spec.files, so that an error of ReadFiles becomes spec.FilesErr.
func Resolve(ctx context.Context, live client.Reader, vm *api.VirtualMachine, spec *driver.ServerSpec) (err error) {
	if files, err := ReadFiles(ctx, live, vm); err == nil {
		spec.Files = files
	} else {
		spec.FilesErr = err
	}
	r := reader{live: live, namespace: vm.Namespace, known: map[string]*corev1.Secret{}}
	if spec.UserData, err = r.readData(ctx, "userData", vm.Spec.UserData); err != nil {
		return err
	}
	if spec.NetworkData, err = r.readData(ctx, "networkData", vm.Spec.NetworkData); err != nil {
		return err
	}
	spec.Env, err = r.readEnv(ctx, vm.Spec.Env)
	return err
}

// reader reads the Secrets of a namespace.
type reader struct {
	live      client.Reader
	namespace string
	known     map[string]*corev1.Secret // keyed by name
}

// readData returns the text of a data source.
func (r reader) readData(ctx context.Context, field string, source *api.DataSource) (driver.Secret, error) {
	switch {
	case source == nil:
		return driver.Secret{}, nil
	case source.Inline != nil:
		return driver.NewSecret(*source.Inline), nil
	case source.SecretKeyRef == nil:
		return driver.Secret{}, nil
	}
	text, err := r.readKey(ctx, *source.SecretKeyRef)
	if err != nil {
		return driver.Secret{}, unavailableError(field, err)
	}
	return driver.NewSecret(text), nil
}

// readEnv returns the environment variables with their values.
func (r reader) readEnv(ctx context.Context, variables []api.EnvVar) ([]driver.EnvVar, error) {
	env, size := make([]driver.EnvVar, 0, len(variables)), 0
	for n, v := range variables {
		value, found, err := r.readValue(ctx, v)
		if err != nil {
			return nil, unavailableError(fmt.Sprintf("env[%d]", n), err)
		}
		if !found {
			continue
		}
		env, size = append(env, driver.EnvVar{Name: v.Name, Value: driver.NewSecret(value)}), size+len(v.Name)+len(value)+2
	}
	if size > maxEnvBytes {
		return nil, unavailableError("env", fmt.Errorf("the variables with the values of Secrets have %d bytes: at most %d are allowed for names and values, with two bytes more for each variable", size, maxEnvBytes))
	}
	return env, nil
}

// readValue returns the value of a variable. found is false if the variable is optional and its Secret, or
// the key in the Secret, is missing.
func (r reader) readValue(ctx context.Context, v api.EnvVar) (value string, found bool, err error) {
	if v.ValueFrom == nil || v.ValueFrom.SecretKeyRef == nil {
		return v.Value, true, nil
	}
	ref := v.ValueFrom.SecretKeyRef
	value, err = r.readKey(ctx, ref.SecretKeyRef)
	switch _, isMissing := err.(missingError); { //nolint:errorlint // readKey does not wrap it
	case isMissing && ref.Optional:
		return "", false, nil
	case err != nil:
		return "", false, err
	case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
		return "", false, fmt.Errorf("the key %q of Secret %q cannot be the value of an environment variable: it must be UTF-8 text without NUL characters", ref.Key, ref.Name)
	}
	return value, true, nil
}

// missingError says which Secret or key is missing.
type missingError string

// Error implements error.
func (e missingError) Error() string { return string(e) }

// readKey returns the value of a key of a Secret, or a missingError.
func (r reader) readKey(ctx context.Context, ref api.SecretKeyRef) (string, error) {
	secret := r.known[ref.Name]
	if secret == nil {
		secret = &corev1.Secret{}
		err := r.live.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: ref.Name}, secret)
		if apierrors.IsNotFound(err) {
			return "", missingError(fmt.Sprintf("Secret %q does not exist in the VirtualMachine's namespace", ref.Name))
		}
		if err != nil {
			return "", err
		}
		r.known[ref.Name] = secret
	}
	value, ok := secret.Data[ref.Key]
	if !ok {
		return "", missingError(fmt.Sprintf("Secret %q lacks the key %q", ref.Name, ref.Key))
	}
	return string(value), nil
}

// unavailableError returns the error for a field whose Secret is missing or unusable.
func unavailableError(field string, err error) error {
	return driver.WithReason(api.ReasonSecretUnavailable, driver.Errorf(driver.ErrRetry, "spec.%s: %w", field, err))
}

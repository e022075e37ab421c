// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"net/http"

	"k8s.io/client-go/kubernetes"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// client has the API groups that this package uses. A whole clientset would make the program
// 9 MB larger.
type client struct {
	kubernetes.Interface // nil: it has the other groups, which are not used

	core           core.CoreV1Interface
	authentication authentication.AuthenticationV1Interface
	authorization  authorization.AuthorizationV1Interface
}

// NewClient returns a client for Options and NewAuthorizer, and for nothing else.
func NewClient(config *rest.Config, transport *http.Client) (kubernetes.Interface, error) {
	c, coreErr := core.NewForConfigAndClient(config, transport)
	a, authenticationErr := authentication.NewForConfigAndClient(config, transport)
	z, authorizationErr := authorization.NewForConfigAndClient(config, transport)
	return client{core: c, authentication: a, authorization: z}, errors.Join(coreErr, authenticationErr, authorizationErr)
}

// CoreV1 implements kubernetes.Interface.
func (c client) CoreV1() core.CoreV1Interface { return c.core }

// AuthenticationV1 implements kubernetes.Interface.
func (c client) AuthenticationV1() authentication.AuthenticationV1Interface { return c.authentication }

// AuthorizationV1 implements kubernetes.Interface.
func (c client) AuthorizationV1() authorization.AuthorizationV1Interface { return c.authorization }

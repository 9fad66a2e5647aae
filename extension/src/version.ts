/** Version of this package: the kernel's must agree in major and minor. */
export const PACKAGE_VERSION = '0.1.0';

/** Version of the messages between kernel and front end. */
export const PROTOCOL = 1;

/** Name of the comm target on both sides. */
export const COMM_TARGET = 'fusion_advisor';
